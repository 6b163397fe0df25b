"""Sandboxes with the loop's default client: `await kernpool.aio.sandboxes.create(count=240, command=["true"])`."""

from collections.abc import Sequence
from typing import Unpack

from kernpool.aio.default import default_client
from kernpool.aio.sandbox import Batch, Sandbox
from kernpool.options import CreateOptions
from kernpool.results import Pool


async def create(count: int = 1, **options: Unpack[CreateOptions]) -> Batch:
    """Make sandboxes, and run a command in each where one is given; see `Sandboxes.create`."""
    return await (await default_client(start=True)).sandboxes.create(count, **options)


async def get(sandbox_id: str) -> Sandbox:
    """Take up a sandbox. Raises NotFoundError."""
    return await (await default_client()).sandboxes.get(sandbox_id)


async def set_pools(wanted: Sequence[Pool]) -> tuple[Pool, ...]:
    """Set all parked pools; those not named are drained."""
    return await (await default_client(start=True)).sandboxes.set_pools(wanted)
