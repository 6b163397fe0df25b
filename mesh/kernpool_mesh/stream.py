"""One byte stream inside a link: read, write, half close, reset, with back-pressure by credit.

A stream keeps the bytes that wait for credit or for their turn on the link (`write` queues, the link takes one frame
at a time) and hands incoming bytes to its receiver: its own read buffer, or a LinkTransport once that is attached.
"""

import asyncio
from collections import deque
from typing import Final, Protocol, final

from kernpool_mesh.errors import StreamError, StreamResetError, StreamStateError
from kernpool_mesh.messages import StreamCredit, StreamData, StreamEof, StreamReset
from kernpool_mesh.streamstate import StreamEvent, StreamState

WRITE_HIGH_BYTES: Final = 64 * 1024
"""More queued bytes than this pause the writer."""
WRITE_LOW_BYTES: Final = 16 * 1024
"""Fewer queued bytes than this wake it again."""
SMALL_CHUNK_BYTES: Final = 2048


class StreamHost(Protocol):
    """What a stream needs from its link."""

    def send_stream_control(self, message: StreamCredit | StreamReset) -> None:
        """Queue a small frame ahead of all stream data."""

    def stream_ready(self, stream: "LinkStream") -> None:
        """This stream has a frame to send (`next_frame`)."""

    def stream_over(self, stream: "LinkStream") -> None:
        """Both directions are over: forget it."""


class StreamReceiver(Protocol):
    """Who takes what a stream brings."""

    def data_received(self, data: bytes) -> None:
        """Bytes from the other side; call `stream.consumed` when they are used up."""

    def eof_received(self) -> None:
        """The other side ended its direction."""

    def eof_sent(self) -> None:
        """Everything queued and the end of this direction went out."""

    def writable(self) -> None:
        """Few bytes are queued again."""

    def stream_closed(self) -> None:
        """Both directions ended in order (bytes and the other side's end may still wait to be told)."""

    def stream_reset(self, error: str) -> None:
        """The stream was reset by the other side, by this one, or with its link."""


@final
class LinkStream:
    """A two-way byte stream to the other side of the link; made by `Link.open_stream` or handed to `Link.on_stream`.

    Use it directly (`read`, `write`, `drain`, `write_eof`, `reset`) or give it to a `LinkTransport`, never both.
    """

    def __init__(
        self, host: StreamHost, state: StreamState, *, actor: str, object_: str, verbs: tuple[str, ...]
    ) -> None:
        self.stream_id = state.stream_id
        self.actor = actor
        """Who acts, from the open frame."""
        self.object = object_
        """`sandbox/<id>` or `job/<id>`: what the stream may touch."""
        self.verbs = verbs
        self._host = host
        self._state = state
        self._queue: deque[bytes] = deque()
        """Bytes to send, oldest first; the first chunk from `_offset` on."""
        self._offset = 0
        self._queued_bytes = 0
        self._eof_queued = False
        """write_eof was called; the end goes out after the queue."""
        self._scheduled = False
        """The link knows that a frame is ready."""
        self._own = _ReadBuffer(self)
        self._receiver: StreamReceiver = self._own
        self._reset_error: str | None = None

    def __repr__(self) -> str:
        return f"<LinkStream {self.stream_id} {self._state.phase} {self.object}>"

    # --- for the user of the stream ---

    async def read(self, n: int = 65536) -> bytes:
        """Some bytes, at most `n`; b"" after the other side's end. Raises StreamResetError."""
        return await self._own.read(n)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Queue bytes; follow with `await drain()`. Raises StreamResetError, StreamStateError after write_eof."""
        self._check_writable()
        if not data:
            return
        chunk = data if type(data) is bytes else bytes(data)
        self._queue.append(chunk)
        self._queued_bytes += len(chunk)
        self._schedule()

    async def drain(self) -> None:
        """Wait until little is queued. Raises StreamResetError."""
        await self._own.drain(WRITE_HIGH_BYTES)

    def write_eof(self) -> None:
        """End this direction after what is queued; the other one stays open. Raises like `write`."""
        self._check_writable()
        self._eof_queued = True
        self._schedule()

    def reset(self, error: str = "") -> None:
        """End both directions at once; queued bytes are dropped. Harmless when it is over already."""
        if not self._state.over:
            self._host.send_stream_control(StreamReset(self.stream_id, error[:500]))
            self.end_by_reset(error or "reset by this side")

    async def wait_closed(self) -> None:
        """Wait until both directions are over (never raises)."""
        await self._own.wait_closed()

    @property
    def closed(self) -> bool:
        """Both directions are over."""
        return self._state.over

    @property
    def write_ended(self) -> bool:
        """write_eof was called."""
        return self._eof_queued

    @property
    def eof_sent(self) -> bool:
        """The end of this direction is on its way, after everything that was queued."""
        return not self._state.can_send

    @property
    def reset_error(self) -> str | None:
        """Why it was reset; None when it was not."""
        return self._reset_error

    @property
    def queued_bytes(self) -> int:
        """Bytes written and not yet handed to the link."""
        return self._queued_bytes

    # --- for a transport on top ---

    def attach(self, receiver: StreamReceiver) -> None:
        """Send all that comes (and came already) to `receiver` instead of the read buffer."""
        self._receiver = receiver
        self._own.hand_over(receiver)
        if self._reset_error is not None:
            receiver.stream_reset(self._reset_error)

    def consumed(self, size: int) -> None:
        """The receiver used up `size` bytes; grants the other side more when enough gathered."""
        grant = self._state.consume(size)
        if grant:
            self._host.send_stream_control(StreamCredit(self.stream_id, grant))

    # --- for the link ---

    def next_frame(self, chunk_bytes_max: int) -> StreamData | StreamEof | None:
        """The next frame in order; None when there is nothing to send or no credit for it."""
        size = min(self._queued_bytes, chunk_bytes_max, self._state.send_credit)
        if size > 0:
            return self._next_data(size)
        if self._eof_queued and not self._queued_bytes and self._state.can_send:
            self._apply(StreamEvent.SEND_EOF)
            self._receiver.eof_sent()
            return StreamEof(self.stream_id)
        return None

    def reschedule(self) -> bool:
        """After a turn on the link: whether the stream has another frame ready and keeps its place in the round."""
        self._scheduled = self._has_frame()
        return self._scheduled

    def on_data(self, data: bytes) -> None:
        """A StreamData frame came; resets the stream when the peer may not send it."""
        try:
            self._state.receive(len(data))
        except StreamError as error:
            self.reset(str(error))
            return
        if data:
            self._receiver.data_received(data)

    def on_credit(self, credit: int) -> None:
        """A StreamCredit frame came."""
        try:
            self._state.add_credit(credit)
        except StreamError as error:
            self.reset(str(error))
            return
        self._schedule()

    def on_eof(self) -> None:
        """A StreamEof frame came."""
        try:
            self._apply(StreamEvent.RECEIVE_EOF)
        except StreamStateError as error:
            self.reset(str(error))
            return
        self._receiver.eof_received()

    def end_by_reset(self, error: str) -> None:
        """It is over without an answer: the other side's reset, this side's own, or the end of the link."""
        if self._state.over:
            return
        self._state.apply(StreamEvent.RESET)
        self._reset_error = error
        self._queue.clear()
        self._queued_bytes = self._offset = 0
        self._host.stream_over(self)
        self._receiver.stream_reset(error)
        if self._receiver is not self._own:
            self._own.stream_reset(error)

    # --- inside ---

    def _check_writable(self) -> None:
        if self._reset_error is not None:
            raise StreamResetError(f"stream {self.stream_id} was reset: {self._reset_error}")
        if self._eof_queued:
            raise StreamStateError(f"stream {self.stream_id}: this side has ended its direction already")

    def _has_frame(self) -> bool:
        if self._queued_bytes:
            return self._state.send_credit > 0
        return self._eof_queued and self._state.can_send

    def _schedule(self) -> None:
        if not self._scheduled and self._has_frame():
            self._scheduled = True
            self._host.stream_ready(self)

    def _next_data(self, size: int) -> StreamData:
        self._state.send(size)
        data = self._take(size)
        before = self._queued_bytes
        self._queued_bytes -= size
        if self._queued_bytes <= WRITE_LOW_BYTES < before or (not self._queued_bytes):
            self._receiver.writable()
        return StreamData(self.stream_id, data)

    def _take(self, size: int) -> bytes:
        head = self._queue[0]
        if self._offset == 0 and len(head) == size:
            return self._queue.popleft()
        if len(head) - self._offset > size:
            data = head[self._offset : self._offset + size]
            self._offset += size
            return data
        pieces = []
        while size:
            head = self._queue[0]
            piece = head[self._offset : self._offset + size]
            pieces.append(piece)
            size -= len(piece)
            self._offset += len(piece)
            if self._offset == len(head):
                self._queue.popleft()
                self._offset = 0
        return b"".join(pieces)

    def _apply(self, event: StreamEvent) -> None:
        self._state.apply(event)
        if self._state.over:
            self._host.stream_over(self)
            self._receiver.stream_closed()
            self._own.wake_all()


def append_chunk(buffer: deque[bytes], data: bytes) -> None:
    """Add incoming bytes, joining tiny chunks: one-byte frames would cost forty times their credit in memory."""
    if len(data) < SMALL_CHUNK_BYTES and buffer and len(buffer[-1]) < SMALL_CHUNK_BYTES:
        buffer[-1] += data
    else:
        buffer.append(data)


class _ReadBuffer:
    """The receiver of a stream that is read with `read`: keeps bytes until they are asked for."""

    __slots__ = ("_buffer", "_eof", "_stream", "_waiters")

    def __init__(self, stream: LinkStream) -> None:
        self._stream = stream
        self._buffer: deque[bytes] = deque()
        self._eof = False
        self._waiters: list[asyncio.Future[None]] = []

    def data_received(self, data: bytes) -> None:
        append_chunk(self._buffer, data)
        self.wake_all()

    def eof_received(self) -> None:
        self._eof = True
        self.wake_all()

    def eof_sent(self) -> None:
        self.wake_all()

    def writable(self) -> None:
        self.wake_all()

    def stream_closed(self) -> None:
        self.wake_all()

    def stream_reset(self, error: str) -> None:
        self.wake_all()

    def hand_over(self, receiver: StreamReceiver) -> None:
        while self._buffer:
            receiver.data_received(self._buffer.popleft())
        if self._eof:
            receiver.eof_received()

    def wake_all(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def read(self, n: int) -> bytes:
        while not self._buffer:
            if self._eof:
                return b""
            self._raise_if_reset()
            await self._wait()
        data = self._buffer.popleft()
        if len(data) > n:
            self._buffer.appendleft(data[n:])
            data = data[:n]
        self._stream.consumed(len(data))
        return data

    async def drain(self, high_bytes: int) -> None:
        self._raise_if_reset()
        if self._stream.queued_bytes <= high_bytes:
            return
        while self._stream.queued_bytes > WRITE_LOW_BYTES:
            await self._wait()
            self._raise_if_reset()

    async def wait_closed(self) -> None:
        while not self._stream.closed:
            await self._wait()

    async def _wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def _raise_if_reset(self) -> None:
        error = self._stream.reset_error
        if error is not None:
            raise StreamResetError(f"stream {self._stream.stream_id} was reset: {error}")
