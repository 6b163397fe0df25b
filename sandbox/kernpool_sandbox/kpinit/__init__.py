"""Talks to kp-init: the spawner, the PID 1 of each sandbox and the supervisor of each job, over SOCK_SEQPACKET."""
