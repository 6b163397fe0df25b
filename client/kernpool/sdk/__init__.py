"""The synchronous SDK: standard library only."""

from kernpool.sdk.client import Client
from kernpool.sdk.default import default_client
from kernpool.sdk.jobs import Job
from kernpool.sdk.sandbox import Batch, Sandbox, Sandboxes
from kernpool.tasks import TaskLike


def launch(task: TaskLike, cluster: str | None = None) -> Job:
    """Submit a job with the default client, starting this machine's coordinator if need be."""
    return default_client(start=True).launch(task, cluster)


def exec(task: TaskLike, cluster: str) -> Job:  # noqa: A001 - the command's own name
    """Submit a job to the queue of a cluster that is there, with the default client."""
    return default_client().exec(task, cluster)


def job(job_id: str) -> Job:
    """Take up a job with the default client."""
    return default_client().job(job_id)


__all__ = ["Batch", "Client", "Job", "Sandbox", "Sandboxes", "default_client", "exec", "job", "launch"]
