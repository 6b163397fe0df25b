"""The link of one agent and one coordinator: messages and byte streams over one WebSocket, whichever side it is.

One task writes: control frames in their order, then one frame of each stream that has bytes and credit, in turn. One
task (`run`) reads and hands out. Messages beyond a frame travel as fragments; no frame exceeds frame_bytes_max.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Final, final

import aiohttp
from aiohttp import WSMsgType

from kernpool_mesh.codec import MESSAGE_BYTES_MAX, decode, encode
from kernpool_mesh.errors import (
    CodecError,
    LinkBusyError,
    LinkClosedError,
    MalformedMessageError,
    UnknownTypeError,
)
from kernpool_mesh.linktypes import Handler, LinkConfig, LinkEnd, LinkEndCause, StreamHandler
from kernpool_mesh.messages import (
    Fragment,
    Message,
    StreamCredit,
    StreamData,
    StreamEof,
    StreamOpen,
    StreamReset,
)
from kernpool_mesh.stream import LinkStream
from kernpool_mesh.streamtable import Side, StreamTable
from kernpool_mesh.websocket import WebSocket, bound_silence, drop_connection

__all__ = ["Handler", "Link", "LinkConfig", "LinkEnd", "LinkEndCause", "Side", "StreamHandler", "WebSocket"]

_log = logging.getLogger(__name__)


FRAME_OVERHEAD_BYTES: Final = 32
"""msgpack and WebSocket heads: a chunk and both still fit a frame and one TLS record."""
TURN_BYTES: Final = 256 * 1024
"""After so many bytes without a pause the writer lets other tasks run."""
WRITER_LOST_GRACE_S: Final = 0.2
UNKNOWN_TYPES_LOGGED_MAX: Final = 32
CLOSE_REASON_BYTES_MAX: Final = 120
"""What a WebSocket close frame can carry."""


@final
class Link:
    """Messages and streams over a WebSocket that stands already.

    Coordinator: `ws = server_websocket(); await ws.prepare(request); link = Link(ws, Side.COORDINATOR)`,
    `hello = await link.receive()`, `await link.send(Welcome(...))`, `end = await link.run(handler)`.
    Agent: the same with `connect_websocket`. Whoever made the link calls `close` in the end, whatever happened.
    """

    def __init__(self, websocket: WebSocket, side: Side, *, config: LinkConfig | None = None, name: str = "") -> None:
        self._websocket = websocket
        self._config = config or LinkConfig()
        self._loop = asyncio.get_running_loop()
        self.name = name or f"{side} link"
        """For log lines: who is on the other side."""
        self._end: LinkEnd | None = None
        self._ended = self._loop.create_future()
        self._closing = False
        """close() was called: what is queued still goes out, nothing new is taken."""
        self._close_reason = ""
        self._control: deque[bytes] = deque()
        """Encoded frames that go before all stream data."""
        self._control_bytes = 0
        self._room_waiters: deque[asyncio.Future[None]] = deque()
        """Senders that wait for room in the queue, first come first served."""
        self._ready: deque[LinkStream] = deque()
        """Streams with a frame to send, in turn."""
        self._chunk_bytes_max = self._config.frame_bytes_max - FRAME_OVERHEAD_BYTES
        self._fragments = bytearray()
        """The pieces so far of a message that is larger than a frame."""
        self._unknown_types: set[int] = set()
        """Types of a newer protocol that were told to the log."""
        self._streams = StreamTable(self, side, self._config.stream_credit_bytes, self._config.streams_max)
        self._stream_handler: StreamHandler | None = None
        self._wake: asyncio.Future[None] | None = None
        """Set while the writer has nothing to do."""
        self._idle = asyncio.Event()
        """Everything queued was handed to the connection."""
        self._frames_sent = 0
        self._watch: asyncio.TimerHandle | None = None
        bound_silence(websocket, self._config.send_timeout_s)
        self._writer = self._loop.create_task(self._write(), name=f"write {self.name}")

    def __repr__(self) -> str:
        return f"<Link {self.name}{'' if self._end is None else f' over: {self._end.cause}'}>"

    # --- messages ---

    async def send(self, message: Message) -> None:
        """Queue a message, waiting while the queue is full. Raises LinkClosedError, CodecError."""
        data = encode(message)
        while self._control_bytes > self._config.send_queue_bytes_max and not self._closing:
            waiter = self._loop.create_future()
            self._room_waiters.append(waiter)
            await waiter
        self._check_open()
        self._queue(data)

    def send_nowait(self, message: Message) -> None:
        """Queue a message at once. Raises LinkBusyError when the queue is full, LinkClosedError, CodecError."""
        data = encode(message)
        self._check_open()
        if self._control_bytes > self._config.send_queue_bytes_max:
            raise LinkBusyError(f"{self.name}: {self._control_bytes} bytes wait to be sent; wait with send()")
        self._queue(data)

    async def receive(self) -> Message:
        """The next message, for the greeting before `run`. Raises LinkClosedError."""
        while self._end is None:
            message = await self._receive()
            if message is not None:
                return message
        raise LinkClosedError(f"{self.name}: {self._end.sentence}")

    async def run(self, handler: Handler) -> LinkEnd:
        """Receive until the link is over; every stream is reset by then. Cancelling it drops the link."""
        try:
            while self._end is None:
                message = await self._receive()
                if message is not None:
                    await self._hand_out(handler, message)
        finally:
            if self._end is None:
                self._finish(LinkEndCause.CLOSED_HERE, "the task that ran the link was cancelled")
                self._drop_connection()
        return self._end

    # --- streams ---

    def open_stream(self, actor: str, object_: str, verbs: Sequence[str]) -> LinkStream:
        """Open a stream; usable at once, without a round trip. Raises LinkClosedError, LinkBusyError (too many)."""
        self._check_open()
        stream = self._streams.open(actor, object_, tuple(verbs))
        frame = StreamOpen(stream.stream_id, actor, object_, list(verbs), self._config.stream_credit_bytes)
        self._queue(encode(frame))
        return stream

    def on_stream(self, callback: StreamHandler) -> None:
        """Take the streams that the other side opens; without a callback they are refused."""
        self._stream_handler = callback

    # --- the end ---

    async def close(self, reason: str = "") -> None:
        """Send the queued messages (within close_timeout_s), say why, close; streams are reset. Harmless when over."""
        self._closing = True
        self._close_reason = self._close_reason or reason
        self._wake_senders()
        try:
            async with asyncio.timeout(self._config.close_timeout_s):
                if self._end is None:
                    self._wake_writer()
                    await self._idle.wait()
                message = _cut(reason.encode(), CLOSE_REASON_BYTES_MAX)
                await self._websocket.close(code=aiohttp.WSCloseCode.OK, message=message)
        except (TimeoutError, ConnectionError, aiohttp.ClientError):
            self._drop_connection()
        finally:
            self._finish_here()
            self._writer.cancel()
        await asyncio.gather(self._writer, return_exceptions=True)

    @property
    def end(self) -> LinkEnd | None:
        """None while the link stands."""
        return self._end

    async def wait_ended(self) -> LinkEnd:
        """Wait until the link is over."""
        await asyncio.shield(self._ended)
        assert self._end is not None
        return self._end

    @property
    def queued_bytes(self) -> int:
        """Control bytes that wait to be sent."""
        return self._control_bytes

    @property
    def streams_open(self) -> int:
        """Streams that are not over."""
        return len(self._streams)

    @property
    def streams_nearly_full(self) -> bool:
        """Three quarters of streams_max are open: end idle ones."""
        return len(self._streams) * 4 >= self._config.streams_max * 3

    # --- StreamHost: what streams ask of their link ---

    def send_stream_control(self, message: StreamCredit | StreamReset) -> None:
        """Queue a small frame ahead of all stream data."""
        if self._end is None:
            self._queue(encode(message))

    def stream_ready(self, stream: LinkStream) -> None:
        """This stream has a frame to send."""
        self._ready.append(stream)
        self._wake_writer()

    def stream_over(self, stream: LinkStream) -> None:
        """Both directions are over: forget it."""
        self._streams.remove(stream)

    # --- writing ---

    def _check_open(self) -> None:
        if self._end is not None:
            raise LinkClosedError(f"{self.name}: {self._end.sentence}")
        if self._closing:
            raise LinkClosedError(f"{self.name}: this side is closing it")

    def _queue(self, data: bytes) -> None:
        if len(data) <= self._config.frame_bytes_max:
            self._control.append(data)
            self._control_bytes += len(data)
        else:
            self._queue_fragments(data)
        self._wake_writer()

    def _queue_fragments(self, data: bytes) -> None:
        for start in range(0, len(data), self._chunk_bytes_max):
            piece = data[start : start + self._chunk_bytes_max]
            frame = encode(Fragment(piece, last=start + self._chunk_bytes_max >= len(data)))
            self._control.append(frame)
            self._control_bytes += len(frame)

    def _wake_writer(self) -> None:
        if self._wake is not None:
            self._wake.set_result(None)
            self._wake = None
            self._idle.clear()
        if self._watch is None:
            self._arm_watch()

    def _wake_senders(self) -> None:
        while self._room_waiters:
            waiter = self._room_waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)

    async def _write(self) -> None:
        send_bytes = self._websocket.send_bytes
        turn_bytes = 0
        try:
            while self._end is None:
                frame = self._next_frame()
                if frame is None:
                    turn_bytes = 0
                    await self._wait_for_work()
                    continue
                await send_bytes(frame)
                self._frames_sent += 1
                turn_bytes += len(frame)
                if turn_bytes > TURN_BYTES:
                    turn_bytes = 0
                    await asyncio.sleep(0)
        except (ConnectionError, aiohttp.ClientError) as error:
            self._writer_lost(error)
        except Exception:  # noqa: BLE001 - logged; a dead writer must not leave a link that looks alive
            _log.exception("%s: writing failed; the link is dropped", self.name)
            self._finish(LinkEndCause.HANDLER_FAILED, "this side failed while writing")
            self._drop_connection()

    def _writer_lost(self, error: Exception) -> None:
        """The reader is about to learn why, in better words; speak only if it does not."""
        sentence = f"the connection broke while sending: {str(error) or type(error).__name__}"
        self._loop.call_later(WRITER_LOST_GRACE_S, self._finish, LinkEndCause.LOST, sentence)

    async def _wait_for_work(self) -> None:
        self._idle.set()
        self._wake = self._loop.create_future()
        await self._wake

    def _next_frame(self) -> bytes | None:
        if self._control:
            frame = self._control.popleft()
            self._control_bytes -= len(frame)
            if self._room_waiters and self._control_bytes <= self._config.send_queue_bytes_max:
                self._wake_senders()
            return frame
        while self._ready and not self._closing:
            stream = self._ready.popleft()
            message = stream.next_frame(self._chunk_bytes_max)
            if stream.reschedule():
                self._ready.append(stream)
            if message is not None:
                return encode(message)
        return None

    # --- a peer that takes nothing ---

    def _arm_watch(self) -> None:
        self._watch = self._loop.call_later(self._config.send_timeout_s, self._check_progress, self._frames_sent)

    def _check_progress(self, frames_before: int) -> None:
        self._watch = None
        if self._end is not None or self._wake is not None:
            return
        if self._frames_sent == frames_before:
            self._finish(LinkEndCause.STALLED, f"the other side took nothing for {self._config.send_timeout_s:.0f} s")
            self._drop_connection()
        else:
            self._arm_watch()

    # --- reading ---

    async def _receive(self) -> Message | None:
        """The next message for the handler; None when a frame was for a stream, unknown, or the link is over."""
        while self._control_bytes > 2 * self._config.send_queue_bytes_max:
            await self._room()
        frame = await self._websocket.receive()
        if frame.type is not WSMsgType.BINARY:
            self._finish_by_frame(frame)
            return None
        if len(frame.data) > self._config.frame_bytes_max:
            await self._protocol_error(f"a frame of {len(frame.data)} bytes, at most {self._config.frame_bytes_max}")
            return None
        try:
            return self._take(decode(frame.data))
        except UnknownTypeError as error:
            self._warn_once(error)
        except CodecError as error:
            await self._protocol_error(str(error))
        return None

    def _warn_once(self, error: UnknownTypeError) -> None:
        if error.type_number not in self._unknown_types and len(self._unknown_types) < UNKNOWN_TYPES_LOGGED_MAX:
            self._unknown_types.add(error.type_number)
            _log.warning("%s: frames of this type are dropped: %s", self.name, error)

    async def _room(self) -> None:
        """Answers pile up because the other side reads nothing: read nothing from it either."""
        waiter = self._loop.create_future()
        self._room_waiters.append(waiter)
        await waiter

    def _take(self, message: Message) -> Message | None:
        match message:
            case StreamData() | StreamCredit() | StreamEof() | StreamReset():
                self._streams.dispatch(message)
            case StreamOpen():
                self._accept(message)
            case Fragment():
                return self._join(message)
            case _:
                return message
        return None

    def _join(self, fragment: Fragment) -> Message | None:
        self._fragments += fragment.data
        if len(self._fragments) > MESSAGE_BYTES_MAX:
            raise MalformedMessageError(f"fragments of more than {MESSAGE_BYTES_MAX} bytes")
        if not fragment.last:
            return None
        data, self._fragments = bytes(self._fragments), bytearray()
        message = decode(data)
        if isinstance(message, Fragment | StreamOpen | StreamData | StreamCredit | StreamEof | StreamReset):
            raise MalformedMessageError(f"a {type(message).__name__} in fragments")
        return message

    def _accept(self, frame: StreamOpen) -> None:
        stream = self._streams.accept(frame, refuse="" if self._stream_handler else "this side serves no streams")
        if stream is None or self._stream_handler is None:
            return
        try:
            self._stream_handler(stream)
        except Exception:  # noqa: BLE001 - logged; one stream's fault does not end the others
            _log.exception("%s: the stream handler failed on %r; the stream is reset", self.name, stream)
            stream.reset("internal error")

    async def _hand_out(self, handler: Handler, message: Message) -> None:
        try:
            waiting = handler(message)
            if waiting is not None:
                await waiting
        except Exception:  # noqa: BLE001 - logged; whatever the handler's fault is, the link says goodbye
            name = type(message).__name__
            _log.exception("%s: the handler failed on a %s message; the link is closed", self.name, name)
            self._finish(LinkEndCause.HANDLER_FAILED, f"the handler of this side failed on a {name} message")
            await self._say_goodbye(aiohttp.WSCloseCode.INTERNAL_ERROR, f"failed on a {name} message")

    # --- how it ends ---

    def _finish_by_frame(self, frame: aiohttp.WSMessage) -> None:
        match frame.type:
            case WSMsgType.CLOSE:
                said = f"the other side closed the link: {frame.extra or 'no reason given'} (code {frame.data})"
                self._finish(LinkEndCause.CLOSED_BY_PEER, said)
            case WSMsgType.CLOSING | WSMsgType.CLOSED if self._closing:
                self._finish_here()
            case WSMsgType.ERROR if isinstance(frame.data, aiohttp.WebSocketError):
                self._finish(LinkEndCause.PROTOCOL_ERROR, f"the other side broke the WebSocket protocol: {frame.data}")
            case WSMsgType.ERROR | WSMsgType.CLOSING | WSMsgType.CLOSED:
                error = self._websocket.exception()
                self._finish(LinkEndCause.LOST, f"the connection broke{f': {error}' if error else ' without a word'}")
            case _:
                self._finish(LinkEndCause.PROTOCOL_ERROR, f"the other side sent a {frame.type.name} frame")
                self._drop_connection()

    async def _protocol_error(self, sentence: str) -> None:
        self._finish(LinkEndCause.PROTOCOL_ERROR, f"the other side sent {sentence}")
        await self._say_goodbye(aiohttp.WSCloseCode.PROTOCOL_ERROR, sentence)

    async def _say_goodbye(self, code: int, sentence: str) -> None:
        try:
            async with asyncio.timeout(self._config.close_timeout_s):
                await self._websocket.close(code=code, message=_cut(sentence.encode(), CLOSE_REASON_BYTES_MAX))
        except (TimeoutError, ConnectionError, aiohttp.ClientError):
            self._drop_connection()

    def _finish(self, cause: LinkEndCause, sentence: str) -> None:
        if self._end is not None:
            return
        self._end = LinkEnd(cause, sentence)
        self._ended.set_result(None)
        self._closing = True
        self._control.clear()
        self._control_bytes = 0
        self._ready.clear()
        self._streams.end_all(sentence)
        self._idle.set()
        self._wake_senders()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._wake is not None:
            self._wake.set_result(None)
            self._wake = None

    def _finish_here(self) -> None:
        said = f": {self._close_reason}" if self._close_reason else ""
        self._finish(LinkEndCause.CLOSED_HERE, f"this side closed the link{said}")

    def _drop_connection(self) -> None:
        drop_connection(self._websocket)


def _cut(text: bytes, size: int) -> bytes:
    """At most `size` bytes, not ending within a character."""
    return text[:size].decode(errors="ignore").encode()
