"""A job's handle: its state, its end, its log."""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, final

from kernpool.errors import CutError
from kernpool.protocol import calls
from kernpool.protocol.logs import LogPosition
from kernpool.protocol.retries import TransportError
from kernpool.results import JobInfo
from kernpool.sdk.transport import Request, Stream

if TYPE_CHECKING:
    from kernpool.sdk.client import Client


@final
class Job:
    """One job; `info` is as of the last call that told of it."""

    __slots__ = ("_client", "info")

    def __init__(self, client: "Client", info: JobInfo) -> None:
        self._client = client
        self.info = info

    def __repr__(self) -> str:
        return f"Job({self.id!r}, {self.info.state})"

    @property
    def id(self) -> str:
        """Its name in every command: `j-17`."""
        return self.info.id

    def refresh(self) -> JobInfo:
        """Ask for its state now."""
        self.info = self._client.run(calls.job(self.id))
        return self.info

    def cancel(self) -> JobInfo:
        """Ask for its end; `wait` for the end itself."""
        self.info = self._client.run(calls.cancel_job(self.id))
        return self.info

    def wait(self, timeout_s: float | None = None) -> JobInfo:
        """Wait for its end. Raises TimeoutError; the job goes on."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.info.ended:
            left_s = calls.WAIT_S_MAX if deadline_s is None else deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"{self.id} is {self.info.state} after {timeout_s:g} s")
            self.info = self._client.run(calls.wait_job(self.id, min(left_s, calls.WAIT_S_MAX)))
        return self.info

    def logs(
        self,
        *,
        follow: bool = True,
        tail: int | None = None,
        offset: int = 0,
        index: int = 0,
        on_lost: Callable[[int], None] | None = None,
        on_restart: Callable[[], None] | None = None,
    ) -> Iterator[bytes]:
        """Give the log of one rank as it comes; `follow`: until the job ends, over cut connections and restarts.

        `on_lost` is told how many bytes were rotated away before they could be read, `on_restart` when what follows
        is the log of a later attempt. Raises CutError, ApiError.
        """
        position = LogPosition(self.id, index=index, offset=offset, follow=follow, tail=tail)
        return self._read_log(position, index, on_lost, on_restart)

    def _read_log(
        self,
        position: LogPosition,
        index: int,
        on_lost: Callable[[int], None] | None,
        on_restart: Callable[[], None] | None,
    ) -> Iterator[bytes]:
        while True:
            try:
                stream = self._open_log(position, index)
                with stream:
                    lost = position.begin(stream.headers)
                    if lost and on_lost:
                        on_lost(lost)
                    if position.is_restart and on_restart:
                        on_restart()
                    while data := stream.read():
                        position.advance(len(data))
                        yield data
            except TransportError as error:
                pause_s = position.broke()
                if pause_s is None:
                    raise CutError(f"The log of {self.id} was cut again and again: {error}.") from error
                time.sleep(pause_s)
            else:
                if not position.ended():
                    return

    def _open_log(self, position: LogPosition, index: int) -> Stream:
        if position.needs_coordinator:
            return self._client.open(Request("GET", position.path(direct=False)))
        return self._client.open_at_node(
            f"job/{self.id}/{index}",
            self.info.node_of(index),
            lambda direct: Request("GET", position.path(direct=direct)),
        )
