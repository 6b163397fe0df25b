"""The link of one agent and one coordinator: messages and byte streams over one WebSocket, whichever side it is."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import final

import aiohttp
from aiohttp import web

from kernpool_mesh.messages import FRAME_BYTES_MAX, Message
from kernpool_mesh.stream import LinkStream

Handler = Callable[[Message], Awaitable[None] | None]
"""Called with each message in order. Return at once (start a task for what takes long): the whole link waits for it."""
StreamHandler = Callable[[LinkStream], None]
"""Called with each stream that the other side opens."""
WebSocket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


class Side(StrEnum):
    """Which end of the link this process is; it decides the parity of stream ids."""

    COORDINATOR = "coordinator"
    """Opens even streams."""
    AGENT = "agent"
    """Opens odd streams."""


class LinkEndCause(StrEnum):
    """Why a link is over."""

    CLOSED_HERE = "closed_here"
    """This side called close()."""
    CLOSED_BY_PEER = "closed_by_peer"
    """The other side closed it and said why."""
    LOST = "lost"
    """The connection broke without a word."""
    PROTOCOL_ERROR = "protocol_error"
    """The other side sent what it must not."""
    HANDLER_FAILED = "handler_failed"
    """A handler of this side raised; it was logged."""
    STALLED = "stalled"
    """The other side took no bytes for send_timeout_s."""


@final
@dataclass(frozen=True, slots=True)
class LinkEnd:
    """How a link ended."""

    cause: LinkEndCause
    sentence: str


@final
@dataclass(frozen=True, slots=True)
class LinkConfig:
    """Limits of a link; both sides use the same frame size and credit."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    stream_credit_bytes: int = 256 * 1024
    send_queue_bytes_max: int = 8 * 1024 * 1024
    streams_max: int = 1024
    send_timeout_s: float = 30.0
    close_timeout_s: float = 2.0


@final
class Link:
    """Messages and streams over a WebSocket that stands already.

    Coordinator: `ws = server_websocket(); await ws.prepare(request); link = Link(ws, Side.COORDINATOR)`,
    `hello = await link.receive()`, `await link.send(Welcome(...))`, `end = await link.run(handler)`.
    Agent: the same with `connect_websocket`.
    """

    def __init__(self, websocket: WebSocket, side: Side, *, config: LinkConfig | None = None, name: str = "") -> None:
        raise NotImplementedError

    async def send(self, message: Message) -> None:
        """Queue a message, waiting while the queue is full. Raises LinkClosedError, CodecError."""
        raise NotImplementedError

    def send_nowait(self, message: Message) -> None:
        """Queue a message at once. Raises LinkBusyError when the queue is full, LinkClosedError, CodecError."""
        raise NotImplementedError

    async def receive(self) -> Message:
        """The next message, for the greeting before `run`. Raises LinkClosedError."""
        raise NotImplementedError

    async def run(self, handler: Handler) -> LinkEnd:
        """Receive until the link is over; every stream is reset by then. Cancelling it drops the link."""
        raise NotImplementedError

    def open_stream(self, actor: str, object_: str, verbs: Sequence[str]) -> LinkStream:
        """Open a stream; usable at once, without a round trip. Raises LinkClosedError, LinkBusyError (too many)."""
        raise NotImplementedError

    def on_stream(self, callback: StreamHandler) -> None:
        """Take the streams that the other side opens; without a callback they are refused."""
        raise NotImplementedError

    async def close(self, reason: str = "") -> None:
        """Send what is queued (within close_timeout_s), say why, close. Harmless when it is over already."""
        raise NotImplementedError

    @property
    def end(self) -> LinkEnd | None:
        """None while the link stands."""
        raise NotImplementedError


def server_websocket() -> web.WebSocketResponse:
    """A WebSocketResponse with the link's limits."""
    raise NotImplementedError


async def connect_websocket(
    session: aiohttp.ClientSession, url: str, *, ssl_context: object, server_hostname: str | None = None
) -> aiohttp.ClientWebSocketResponse:
    """Dial the coordinator's `/node/v1/link` with the link's limits. Raises LinkClosedError with a sentence."""
    raise NotImplementedError
