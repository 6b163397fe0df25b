"""What a job finds in its environment: a clean login, what the task asked for, what the node knows, the secrets."""

from collections.abc import Mapping
from typing import Final

from kernpool_agent.ceiling import User
from kernpool_mesh.messages import StartAttempt

SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TWINS: Final = ("NODE_RANK", "NUM_NODES", "NODE_IPS", "HEAD_IP", "NUM_GPUS_PER_NODE", "JOB_ID")
"""Names told as KP_<name> and, for files written for SkyPilot, as SKYPILOT_<name>."""


def job_environment(spec: StartAttempt, user: User) -> dict[str, str]:
    """Build the whole environment of an attempt; nothing of the agent's own environment is in it."""
    env = {
        "HOME": user.home,
        "USER": user.name,
        "LOGNAME": user.name,
        "SHELL": "/bin/bash",
        # What `pip install --user` and uv install is found, as after a login.
        "PATH": f"{user.home}/.local/bin:{SYSTEM_PATH}",
        "LANG": "C.UTF-8",
        # A job's log is watched while it runs: what Python prints should be in it at once.
        "PYTHONUNBUFFERED": "1",
        "KP_JOB_ID": spec.job_id,
        "KP_NODE_RANK": str(spec.index),
        "KP_NUM_GPUS_PER_NODE": str(len(spec.gpu_indices)),
    }
    env.update(spec.env)
    env.update(spec.secret_env)
    env.update(_gpus(spec, env))
    for name in _TWINS:
        if f"KP_{name}" in env:
            env.setdefault(f"SKYPILOT_{name}", env[f"KP_{name}"])
    env.setdefault("SKYPILOT_INTERNAL_JOB_ID", env["KP_JOB_ID"])
    return env


def _gpus(spec: StartAttempt, env: Mapping[str, str]) -> dict[str, str]:
    """Show the job its GPUs alone: none asked for, none seen (unless the task itself chose)."""
    if spec.gpu_indices:
        visible = ",".join(str(index) for index in spec.gpu_indices)
        # NVML counts by PCI bus; without this CUDA would count by speed.
        return {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return {} if "CUDA_VISIBLE_DEVICES" in env else {"CUDA_VISIBLE_DEVICES": ""}
