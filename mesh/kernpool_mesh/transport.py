"""A LinkStream as an asyncio.Transport, so that any asyncio protocol (aiohttp's, above all) runs inside a stream.

It keeps asyncio's promises: connection_lost comes once and from the event loop; `close` sends what is queued first; an
end of the peer closes unless the protocol wants half-open.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast, final

from kernpool_mesh.stream import WRITE_HIGH_BYTES, WRITE_LOW_BYTES, LinkStream, append_chunk

LINGER_S: Final = 15.0
"""After close, how long nothing may move before the rest is given up by a reset."""


@final
class LinkTransport(asyncio.Transport):
    """`get_extra_info("link_stream")` is the stream, so a handler finds who acts on what with which verbs."""

    def __init__(self, stream: LinkStream, protocol: asyncio.BaseProtocol) -> None:
        """Attach `protocol` to `stream` and call its connection_made."""
        super().__init__({"link_stream": stream})
        self._loop = asyncio.get_running_loop()
        self._stream = stream
        self._protocol = cast("asyncio.Protocol", protocol)
        self._high_bytes = WRITE_HIGH_BYTES
        self._low_bytes = WRITE_LOW_BYTES
        self._unread: deque[bytes] = deque()
        """Bytes that came while reading was paused; the stream's credit bounds them."""
        self._reading_paused = False
        self._writing_paused = False
        self._eof_pending = False
        """The other side ended while reading was paused; the protocol is told after the unread bytes."""
        self._closing = False
        """close or abort was called, or the stream is over: nothing more reaches the protocol but connection_lost."""
        self._lost = False
        """connection_lost is called or scheduled."""
        self._linger: asyncio.TimerHandle | None = None
        self._protocol.connection_made(self)
        stream.attach(self)

    def __repr__(self) -> str:
        return f"<LinkTransport {self._stream!r}{' closing' if self._closing else ''}>"

    # --- asyncio.Transport ---

    def is_closing(self) -> bool:
        """No more bytes can be written."""
        return self._closing

    def get_protocol(self) -> asyncio.BaseProtocol:
        """The protocol that this transport drives."""
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Drive another protocol from now on."""
        self._protocol = cast("asyncio.Protocol", protocol)

    def is_reading(self) -> bool:
        """Incoming bytes go to the protocol at once."""
        return not self._reading_paused and not self._closing

    def pause_reading(self) -> None:
        """Keep incoming bytes; the other side runs out of credit."""
        self._reading_paused = True

    def resume_reading(self) -> None:
        """Deliver what was kept, then go on."""
        if self._reading_paused and not self._closing:
            self._reading_paused = False
            if self._unread or self._eof_pending:
                self._loop.call_soon(self._deliver_unread)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Queue bytes; pauses the protocol beyond the high-water mark. Ignored once the transport is closing."""
        if self._closing:
            return
        self._stream.write(data)
        if not self._writing_paused and self._stream.queued_bytes > self._high_bytes:
            self._writing_paused = True
            self._call("pause_writing", self._protocol.pause_writing)

    def can_write_eof(self) -> bool:
        """Half close works."""
        return True

    def write_eof(self) -> None:
        """End this direction after what is queued."""
        if not self._closing and not self._stream.write_ended:
            self._stream.write_eof()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the high and low water marks in bytes. Raises ValueError unless high >= low >= 0."""
        if high is None:
            high = WRITE_HIGH_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high}) must be >= low ({low}) and both >= 0")
        self._high_bytes, self._low_bytes = high, low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """(low, high) in bytes."""
        return self._low_bytes, self._high_bytes

    def get_write_buffer_size(self) -> int:
        """Bytes written and not yet on the link."""
        return self._stream.queued_bytes

    def close(self) -> None:
        """Send what is queued and the end, then connection_lost(None); bytes that still come are refused."""
        if self._closing:
            return
        self._closing = True
        self._unread.clear()
        if not self._stream.write_ended:
            self._stream.write_eof()
        if self._stream.eof_sent:
            self._lose(None)
        if not self._stream.closed:
            self._linger = self._loop.call_later(LINGER_S, self._give_up, self._stream.queued_bytes)

    def abort(self) -> None:
        """Reset the stream and drop what is queued."""
        if not self._lost:
            self._closing = True
            self._lose(None)
        self._stream.reset("aborted")

    # --- StreamReceiver: what the stream tells ---

    def data_received(self, data: bytes) -> None:
        """Bytes of the other side."""
        if self._closing:
            self._stream.reset("this side has closed the stream")
        elif self._reading_paused or self._unread:
            append_chunk(self._unread, data)
        else:
            self._deliver(data)

    def eof_received(self) -> None:
        """The other side ended its direction."""
        if self._unread or self._reading_paused:
            self._eof_pending = True
        elif not self._closing:
            self._deliver_eof()

    def eof_sent(self) -> None:
        """All is out."""
        if self._closing:
            self._lose(None)

    def writable(self) -> None:
        """Few bytes are queued."""
        if self._writing_paused and self._stream.queued_bytes <= self._low_bytes:
            self._writing_paused = False
            self._call("resume_writing", self._protocol.resume_writing)

    def stream_reset(self, error: str) -> None:
        """It is over."""
        self._closing = True
        self._unread.clear()
        self._lose(ConnectionResetError(f"stream {self._stream.stream_id} was reset: {error}"))
        self._cancel_linger()

    def stream_closed(self) -> None:
        """Both sides ended in order."""
        self._cancel_linger()

    # --- inside ---

    def _deliver(self, data: bytes) -> None:
        self._call("data_received", self._protocol.data_received, data)
        self._stream.consumed(len(data))

    def _deliver_unread(self) -> None:
        while self._unread and not self._reading_paused and not self._closing:
            self._deliver(self._unread.popleft())
        if self._eof_pending and not self._unread and not self._reading_paused and not self._closing:
            self._eof_pending = False
            self._deliver_eof()

    def _deliver_eof(self) -> None:
        keep_open = self._call("eof_received", self._protocol.eof_received)
        if not keep_open:
            self.close()

    def _call(self, name: str, method: Callable[..., Any], *arguments: object) -> Any:
        """Call the protocol; its failure ends this stream and never the whole link."""
        try:
            return method(*arguments)
        except Exception as error:  # noqa: BLE001 - told to the loop's exception handler, as every asyncio transport does
            message = f"{name} of a protocol on {self._stream!r} failed; its stream is reset"
            context = {"message": message, "exception": error, "transport": self, "protocol": self._protocol}
            self._loop.call_exception_handler(context)
            self._closing = True
            self._lose(error)
            self._stream.reset("internal error")
            return None

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            self._loop.call_soon(self._protocol.connection_lost, error)

    def _give_up(self, queued_bytes_before: int) -> None:
        queued_bytes = self._stream.queued_bytes
        if queued_bytes < queued_bytes_before:
            self._linger = self._loop.call_later(LINGER_S, self._give_up, queued_bytes)
        else:
            self._stream.reset(f"nothing moved for {LINGER_S:.0f} s after close")

    def _cancel_linger(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None


def serve_stream(stream: LinkStream, protocol_factory: Callable[[], asyncio.BaseProtocol]) -> LinkTransport:
    """Run a server protocol on a stream that the other side opened.

    Agent: `link.on_stream(lambda s: serve_stream(s, runner.server))` with an aiohttp `web.AppRunner` after `setup()`.
    A handler reads `request.transport.get_extra_info("link_stream")`.
    """
    return LinkTransport(stream, protocol_factory())


def stream_of(transport: asyncio.BaseTransport | None) -> LinkStream | None:
    """The stream below a transport (aiohttp: `request.transport`); None for an ordinary connection."""
    stream: Any = None if transport is None else transport.get_extra_info("link_stream")
    return stream if isinstance(stream, LinkStream) else None
