"""One client connection: aiohttp's server protocol with our errors, a bound on how many, and notice of hang-ups."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, final

from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web import BaseRequest, RequestHandler, Server, StreamResponse

from kernpool_coordinator.http import problems

if TYPE_CHECKING:
    from kernpool_coordinator.nodeside.nodehttp import Flow

log = logging.getLogger("kernpool.http")


@final
class Connection(RequestHandler):
    """A connection that cancels the long answers running on it when the client hangs up."""

    __slots__ = ("_abandoned_by", "flow")

    def __init__(self, manager: Server, **options: Any) -> None:
        super().__init__(manager, **options)
        self._abandoned_by: asyncio.Task[Any] | None = None
        """The handler task to cancel on hang-up; None while nothing long runs."""
        self.flow: Flow | None = None
        """The other end of a spliced connection."""

    @contextlib.contextmanager
    def abandonable(self) -> Iterator[None]:
        """While inside, the client's hang-up cancels the current task.

        Only for answers that change nothing or whose effect does not hang on their end: others run to their end.
        """
        self._abandoned_by = asyncio.current_task()
        if self.transport is None:
            raise ConnectionResetError("the client hung up")
        try:
            yield
        finally:
            self._abandoned_by = None

    def connection_lost(self, exc: BaseException | None) -> None:
        """The socket is gone."""
        super().connection_lost(exc)
        if self._abandoned_by is not None:
            self._abandoned_by.cancel()

    def pause_writing(self) -> None:
        """The client takes no more bytes for now."""
        super().pause_writing()
        if self.flow is not None:
            self.flow.peer_full()

    def resume_writing(self) -> None:
        """The client takes bytes again."""
        super().resume_writing()
        if self.flow is not None:
            self.flow.peer_ready()

    def handle_error(
        self, request: BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> StreamResponse:
        """The answer to what never reached a handler: bytes that are no HTTP."""
        if isinstance(exc, HttpProcessingError):
            return problems.malformed(exc.code if 400 <= exc.code < 500 else status, message or exc.message)
        if isinstance(exc, ConnectionError):  # a client that left, or an answer that only a cut can end
            log.debug("%s %s was cut: %s", request.method, request.path, exc)
            raise exc
        log.error("request handling failed: %s", message or exc, exc_info=exc)
        if request.writer.output_size > 0:  # half an answer is out: only a cut tells the client
            raise ConnectionResetError("the answer had begun")
        answer = problems.internal()
        answer.force_close()
        return answer


def abandonable(request: BaseRequest) -> contextlib.AbstractContextManager[None]:
    """Connection.abandonable of the connection that `request` came on."""
    assert isinstance(request.protocol, Connection)
    return request.protocol.abandonable()


@final
class BoundedServer(Server):
    """Makes a Connection for each accepted socket, or hangs up when there are too many."""

    def __init__(
        self,
        handler: Callable[[BaseRequest], Awaitable[StreamResponse]],
        *,
        connections_max: int,
        header_wait_s: float,
    ) -> None:
        super().__init__(
            handler,
            access_log=None,
            keepalive_timeout=header_wait_s,
            lingering_time=2.0,
            # A compressed body would pass the size limits and then swell.
            auto_decompress=False,
            logger=log,
        )
        self._connections_max = connections_max
        self._full = False
        """Connections are being refused; told to the log once until there is room again."""

    def __call__(self) -> RequestHandler:
        """A protocol for one accepted socket."""
        return Connection(self, loop=self._loop, **self._kwargs)

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        """Count it, or refuse it: an answer would need the buffers that the bound is to save."""
        super().connection_made(handler, transport)
        full = len(self._connections) > self._connections_max
        if full and not self._full:
            log.warning("%d connections are open: more are refused for now", self._connections_max)
        self._full = full
        if full:
            transport.abort()
