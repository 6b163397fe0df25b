"""What a rank is started with: its variables, and the whole StartAttempt message."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from kernpool_coordinator.jobs.record import Attempt, Job
from kernpool_coordinator.placement import Ask
from kernpool_mesh.messages import StartAttempt

GRACE_S: Final = 10.0
_NOTHING: Final = ":"
"""What a task without commands runs, so that it too begins, ends and has a log."""


def rank_environment(job: Job, attempt: Attempt, address_of: Callable[[str], str]) -> dict[str, str]:
    """Make the variables by which a rank knows its place, in our spelling and in SkyPilot's."""
    addresses = [address_of(one.node_id) for _, one in sorted(job.attempts.items())]
    gpus = attempt.holding.gpu_indices
    created = time.strftime("%Y-%m-%d-%H-%M-%S", time.gmtime(job.created_unix_s))
    ours = {
        "NODE_RANK": str(attempt.index),
        "NUM_NODES": str(job.num_nodes),
        "NODE_IPS": "\n".join(addresses),
        "NUM_GPUS_PER_NODE": str(len(gpus)),
    }
    variables = {f"{prefix}_{name}": value for prefix in ("KP", "SKYPILOT") for name, value in ours.items()}
    variables |= {
        "KP_HEAD_IP": addresses[0],
        "KP_JOB_ID": job.id,
        "SKYPILOT_TASK_ID": f"kp-{created}_{job.cluster or job.name}_{job.number}",
        "SKYPILOT_INTERNAL_JOB_ID": str(job.number),
    }
    if gpus:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in gpus)
    return variables


def start_message(
    request_id: int, job: Job, attempt: Attempt, secrets: Mapping[str, str], address_of: Callable[[str], str]
) -> StartAttempt:
    """Make the message. Secrets travel in `secret_env` alone, which the node neither journals nor shows."""
    task: dict[str, Any] = json.loads(job.task)
    setup, run = task.get("setup") or "", task.get("run") or ""
    own = {name: str(value) for name, value in (task.get("envs") or {}).items() if value is not None}
    return StartAttempt(
        request_id=request_id,
        job_id=job.id,
        index=attempt.index,
        fence=attempt.fence,
        name=job.name,
        setup=setup,
        run=run or ("" if setup else _NOTHING),
        env=own | rank_environment(job, attempt, address_of),
        limits=(job.ask or Ask()).limits(),
        gpu_indices=list(attempt.holding.gpu_indices),
        grace_s=GRACE_S,
        secret_env=dict(secrets),
        workspace=job.workspace,
        owner=job.owner,
    )
