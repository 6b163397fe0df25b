"""HTTP/1.1 spoken to an agent's data plane over streams of its link: one exchange, and the kept-alive streams.

aiohttp's client protocol and parser do the reading; the request head is written here, so that nothing but the headers
on our list ever reaches a node and a request costs no more than its bytes.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, final

from aiohttp import StreamReader
from aiohttp.client_exceptions import ClientError
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import RawResponseMessage
from aiohttp.http_writer import HttpVersion11
from aiohttp.web_protocol import RequestPayloadError

READ_BYTES: Final = 256 * 1024
"""Buffered at most twice for an answer that its reader does not take; then the stream's credit stops the node."""
IDLE_STREAMS_MAX: Final = 64
"""Kept-alive streams of one link."""


class NodeHttpError(Exception):
    """The exchange broke: the link ended, the agent cut it or spoke no HTTP; the sentence says what was seen."""


@final
@dataclass(frozen=True, slots=True)
class Grant:
    """Who may do what to what inside a stream, as its open frame carries it."""

    actor: str
    object: str
    """`sandbox/<id>` or `job/<id>`."""
    verbs: tuple[str, ...]


class Flow(Protocol):
    """What a relay needs of one side: to be told when the other side's buffers are full, and when it is gone."""

    def peer_full(self) -> None:
        """Stop reading."""

    def peer_ready(self) -> None:
        """Go on reading."""


class NodeConnection(ResponseHandler):
    """aiohttp's client protocol on one stream of a link; passes the stream's back-pressure on to a relay."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.flow: Flow | None = None
        """The relay of an upgraded connection."""

    def pause_writing(self) -> None:
        """The node takes no more bytes for now."""
        super().pause_writing()
        if self.flow is not None:
            self.flow.peer_full()

    def resume_writing(self) -> None:
        """The node takes bytes again."""
        super().resume_writing()
        if self.flow is not None:
            self.flow.peer_ready()

    def write(self, data: bytes) -> None:
        """Queue bytes; raises NodeHttpError when the stream is gone."""
        if self.transport is None or self.transport.is_closing():
            raise NodeHttpError("the stream to the node ended while the request was sent")
        self.transport.write(data)

    async def drain(self) -> None:
        """Wait until little is queued."""
        if self._paused:
            await self._drain_helper()


@final
@dataclass(frozen=True, slots=True)
class NodeRequest:
    """One request to a node's data plane."""

    method: str
    target: str
    """Path and query, percent-encoded."""
    headers: Sequence[tuple[bytes, bytes]] = ()
    """From a parsed request or our own: no line breaks in them. The body's length is not among them."""
    body: AsyncIterable[bytes] | bytes | None = None
    length: int | None = None
    """Of a streamed body, where it is known."""

    def head(self, host: str) -> bytes:
        """The request line and all headers."""
        lines = [f"{self.method} {self.target} HTTP/1.1\r\nHost: {host}".encode("utf-8", "surrogateescape")]
        lines += [name + b": " + value for name, value in self.headers]
        length = len(self.body) if isinstance(self.body, bytes) else self.length
        if length is not None:
            lines.append(b"Content-Length: %d" % length)
        elif self.body is not None:
            lines.append(b"Transfer-Encoding: chunked")
        return b"\r\n".join([*lines, b"", b""])


@final
@dataclass(slots=True)
class NodeAnswer:
    """The head of an answer; its body comes through `content`."""

    message: RawResponseMessage
    content: StreamReader
    connection: NodeConnection
    sender: asyncio.Task[None] | None
    """Still sends the request's body."""

    @property
    def status(self) -> int:
        """HTTP status."""
        return self.message.code

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes; raises NodeHttpError when it is cut."""
        try:
            while chunk := await self.content.readany():
                yield chunk
        except (ClientError, ConnectionError) as error:
            raise NodeHttpError(f"the node cut its answer ({error})") from error

    @property
    def complete(self) -> bool:
        """Nothing is left of this exchange: another request may follow on the stream."""
        return (
            self.content.is_eof()
            and not self.connection.should_close
            and (self.sender is None or self.sender.done())
            and self.message.version >= HttpVersion11
            and self.connection.is_connected()
        )


async def exchange(connection: NodeConnection, host: str, request: NodeRequest, *, first_byte_s: float) -> NodeAnswer:
    """Send a request and wait for the answer's head.

    Raises NodeHttpError, or TimeoutError when no head has come after `first_byte_s`.
    """
    connection.set_response_params(
        skip_payload=request.method == "HEAD", read_until_eof=True, auto_decompress=False, read_bufsize=READ_BYTES
    )
    sender: asyncio.Task[None] | None = None
    if isinstance(request.body, bytes):
        connection.write(request.head(host) + request.body)
    else:
        connection.write(request.head(host))
        if request.body is not None:
            chunked = request.length is None
            sender = asyncio.create_task(_send(connection, request.body, chunked=chunked), name="tunnel request body")
    try:
        async with asyncio.timeout(first_byte_s):
            message, content = await _final_head(connection)
    except BaseException:
        if sender is not None:
            sender.cancel()
        raise
    return NodeAnswer(message, content, connection, sender)


async def _final_head(connection: NodeConnection) -> tuple[RawResponseMessage, StreamReader]:
    """The first head that is no interim one."""
    while True:
        try:
            message, content = await connection.read()
        except (ClientError, ConnectionError, HttpProcessingError) as error:
            raise NodeHttpError(f"the node ended the exchange before it answered ({error})") from error
        if message.code == 101 or message.code >= 200:
            return message, content


async def _send(connection: NodeConnection, body: AsyncIterable[bytes], *, chunked: bool) -> None:
    """Stream a request body; a broken one resets the stream, so that the node never takes half for the whole."""
    try:
        async for chunk in body:
            if chunk:
                connection.write(b"%x\r\n%b\r\n" % (len(chunk), chunk) if chunked else chunk)
                await connection.drain()
        if chunked:
            connection.write(b"0\r\n\r\n")
    except (ConnectionError, NodeHttpError, RequestPayloadError):
        connection.abort()
    except BaseException:
        connection.abort()
        raise


@final
class StreamPool:
    """Kept-alive streams of one link, each only ever reused under the grant that it was opened with."""

    __slots__ = ("_clock", "_idle", "_idle_s", "_open")

    def __init__(self, open_: Callable[[Grant], NodeConnection], *, idle_s: float, clock: Callable[[], float]) -> None:
        self._open = open_
        self._idle_s = idle_s
        """Shorter than the agent's own keep-alive time, so that no request meets a stream that is being closed."""
        self._clock = clock
        self._idle: list[tuple[float, Grant, NodeConnection]] = []
        """(idle since, grant, stream), oldest first."""

    def take(self, grant: Grant) -> NodeConnection:
        """A kept-alive stream, or a new one."""
        self._drop_old()
        for at in reversed(range(len(self._idle))):
            _, held, connection = self._idle[at]
            if held == grant:
                del self._idle[at]
                if connection.is_connected() and not connection.should_close:
                    return connection
        return self._open(grant)

    def give_back(self, grant: Grant, connection: NodeConnection) -> None:
        """Keep a stream whose exchange is complete for the next one."""
        self._idle.append((self._clock(), grant, connection))
        self._drop_old()

    def close(self) -> None:
        """End all of them."""
        for _, _, connection in self._idle:
            connection.close()
        self._idle.clear()

    def _drop_old(self) -> None:
        oldest_s = self._clock() - self._idle_s
        while self._idle and (self._idle[0][0] < oldest_s or len(self._idle) > IDLE_STREAMS_MAX):
            self._idle.pop(0)[2].close()
