"""Drives the supervisor of one job."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self, final

from kernpool_sandbox.kpinit.channel import Channel, close_all
from kernpool_sandbox.kpinit.hello import decode_hello
from kernpool_sandbox.kpinit.plan import Ended, Hello, JobCause, JobEvent, JobExited, Kind, LogGrew, StepStarted
from kernpool_sandbox.kpinit.wire import Frame, Op, Tag, get_u64, put_str, put_u32, put_u64

_SIGNAL_TREE: Final = 1
_DETAIL_BYTES_MAX: Final = 200


def _decode_event(frame: Frame) -> JobEvent | None:
    close_all(frame.fds)
    match frame.op:
        case Op.STEP_STARTED:
            return StepStarted(frame.a, frame.b)
        case Op.LOG_GREW:
            return LogGrew(get_u64(frame.values()[Tag.OFFSET]))
        case Op.JOB_EXITED:
            return JobExited(frame.b, JobCause(frame.a))
        case _:
            return None  # of a later protocol: the record has it all


@final
class JobClient:
    """One connection to a job's supervisor. The newest connection wins: an older one gets `Ended`.

    What has happened before the attach stands in the record (`record.read_job_record`), which is the truth.
    """

    def __init__(self, on_event: Callable[[JobEvent], None]) -> None:
        self._on_event = on_event
        self._channel: Channel
        self.hello: Hello
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
        client = cls(on_event)
        client._channel, hello = await Channel.open(path, client._handle_event, timeout_s)
        client.hello = decode_hello(hello, Kind.JOB)
        client._channel.on_gone = lambda: on_event(Ended())
        return client

    async def stop(self, grace_s: float, detail: str = "") -> None:
        """End the job: SIGTERM to all its processes, SIGKILL after the grace period until none is left.

        Returns when the supervisor has begun; JobExited follows. `detail` goes into the record. Idempotent: a second
        stop may only shorten the grace period.
        """
        text = detail.encode()[:_DETAIL_BYTES_MAX].decode(errors="ignore")
        body = put_u64(Tag.GRACE_MS, max(0, round(grace_s * 1000))) + put_str(Tag.DETAIL, text)
        await self._channel.call(Op.JOB_STOP, body=body)

    async def signal(self, sig: int, *, tree: bool = False) -> None:
        """Send a signal to the running step's leader, or to all descendants; OSError ESRCH when none runs."""
        body = put_u32(Tag.FLAGS, _SIGNAL_TREE) if tree else b""
        await self._channel.call(Op.SIGNAL, 0, sig, body)

    def close(self) -> None:
        """Detach; the job goes on."""
        self._channel.close()
        if self.hello.pidfd >= 0:
            os.close(self.hello.pidfd)
            self.hello = dataclasses.replace(self.hello, pidfd=-1)

    def _handle_event(self, frame: Frame) -> None:
        event = _decode_event(frame)
        if event is not None:
            self._on_event(event)
