"""Jobs as the HTTP API shows them: dicts shaped like JobBody."""

from typing import Any

from kernpool_coordinator.jobs.record import Attempt, Job
from kernpool_coordinator.placement import Ask


def job_body(job: Job) -> dict[str, Any]:
    """Give a JobBody."""
    return {
        "id": job.id,
        "name": job.name,
        "cluster": job.cluster or None,
        "state": str(job.state),
        "reason": str(job.reason) if job.reason and job.over else None,
        "exit_code": job.exit_code,
        "detail": job.detail,
        "num_nodes": job.num_nodes,
        "attempts": [attempt_body(attempt) for _, attempt in sorted(job.attempts.items())],
        "restarts": job.restarts,
        "workspace": job.workspace,
        "owner": job.owner,
        "resources": resources_body(job.ask or job.asks[0]),
        "created_unix_s": job.created_unix_s,
        "started_unix_s": job.started_unix_s,
        "ended_unix_s": job.ended_unix_s,
    }


def attempt_body(attempt: Attempt) -> dict[str, Any]:
    """Give an AttemptBody."""
    return {
        "index": attempt.index,
        "fence": attempt.fence,
        "node": attempt.node_id,
        "state": str(attempt.phase),
        "reason": str(attempt.reason) if attempt.reason else None,
        "exit_code": attempt.exit_code,
        "detail": attempt.detail,
        "started_unix_s": attempt.started_unix_s,
        "ended_unix_s": attempt.ended_unix_s,
    }


def resources_body(ask: Ask) -> dict[str, Any]:
    """Give a ResourcesBody of what one rank asks for."""
    return {
        "cpus": ask.cpu_millis / 1000,
        "memory_mib": ask.memory_mib,
        "disk_mib": ask.disk_mib,
        "gpus": ask.gpus,
    }
