"""Sandboxes with the default client: `kernpool.sandboxes.create(count=240, command=["true"])`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Unpack

from kernpool.options import CreateOptions
from kernpool.results import Created, Pool, Removed, SandboxInfo
from kernpool.sdk.default import default_client
from kernpool.sdk.sandbox import Batch, Sandbox


def create(count: int = 1, **options: Unpack[CreateOptions]) -> Batch:
    """Make sandboxes, and run a command in each where one is given; see `Sandboxes.create`."""
    return default_client(start=True).sandboxes.create(count, **options)


def stream(count: int = 1, **options: Unpack[CreateOptions]) -> Iterator[Created[Sandbox]]:
    """Make sandboxes and give each as soon as it is there."""
    return default_client(start=True).sandboxes.stream(count, **options)


def get(sandbox_id: str) -> Sandbox:
    """Take up a sandbox. Raises NotFoundError."""
    return default_client().sandboxes.get(sandbox_id)


def ls(labels: Mapping[str, str] | None = None, state: str | None = None) -> Iterator[SandboxInfo]:
    """List sandboxes; all the labels must match."""
    return default_client().sandboxes.ls(labels, state)


def remove(
    ids: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
    *,
    all: bool = False,  # noqa: A002 - the word of the API and the command line
) -> Removed:
    """Remove sandboxes by ids, by labels, or all of the workspace."""
    return default_client().sandboxes.remove(ids, labels, all=all)


def pools() -> tuple[Pool, ...]:
    """List the parked pools."""
    return default_client().sandboxes.pools()


def set_pools(wanted: Sequence[Pool]) -> tuple[Pool, ...]:
    """Set all parked pools; those not named are drained."""
    return default_client(start=True).sandboxes.set_pools(wanted)
