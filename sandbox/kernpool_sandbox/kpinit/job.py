"""Drives the supervisor of one job."""

from collections.abc import Callable
from pathlib import Path
from typing import Self, final

from kernpool_sandbox.kpinit.plan import Hello, JobEvent


@final
class JobClient:
    """One connection to a job's supervisor. The newest connection wins: an older one gets `Ended`.

    What has happened before the attach stands in the record (`record.read_job_record`), which is the truth.
    """

    hello: Hello
    """What the supervisor said on attach."""

    @classmethod
    async def attach(
        cls,
        path: Path | str,
        on_event: Callable[[JobEvent], None] = lambda _event: None,
        *,
        timeout_s: float = 10.0,
    ) -> Self:
        """Connect and wait for the hello; raises GoneError when nothing listens (the job is over: read its record)."""
        raise NotImplementedError

    async def stop(self, grace_s: float, detail: str = "") -> None:
        """End the job: SIGTERM to all its processes, SIGKILL after the grace period until none is left.

        Returns when the supervisor has begun; JobExited follows. `detail` goes into the record. Idempotent: a second
        stop may only shorten the grace period.
        """
        raise NotImplementedError

    async def signal(self, sig: int, *, tree: bool = False) -> None:
        """Send a signal to the running step's leader, or to all descendants; OSError ESRCH when none runs."""
        raise NotImplementedError

    def close(self) -> None:
        """Detach; the job goes on."""
        raise NotImplementedError
