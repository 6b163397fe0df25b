"""The asyncio SDK, by aiohttp: the twin of `kernpool`, built on the same requests, answers and decisions."""

from kernpool.aio import sandboxes
from kernpool.aio.client import Client
from kernpool.aio.default import close, default_client
from kernpool.aio.jobs import Job
from kernpool.aio.process import PortConnection, Process
from kernpool.aio.sandbox import Batch, Sandbox, Sandboxes
from kernpool.tasks import TaskLike


async def launch(task: TaskLike, cluster: str | None = None) -> Job:
    """Submit a job with this loop's default client, starting this machine's coordinator if need be."""
    return await (await default_client(start=True)).launch(task, cluster)


async def exec(task: TaskLike, cluster: str) -> Job:  # noqa: A001 - the command's own name
    """Submit a job to the queue of a cluster that is there."""
    return await (await default_client()).exec(task, cluster)


async def job(job_id: str) -> Job:
    """Take up a job."""
    return await (await default_client()).job(job_id)


__all__ = [
    "Batch",
    "Client",
    "Job",
    "PortConnection",
    "Process",
    "Sandbox",
    "Sandboxes",
    "close",
    "default_client",
    "exec",
    "job",
    "launch",
    "sandboxes",
]
