"""Job attempts as process trees under kp-init, each with its own cgroup, log segments and status record.

docs/job-logs.md describes what a person sees.
"""
