"""The agent's end of one command's output or input: non-blocking, bounded, each the owner of its descriptor."""

import array
import asyncio
import fcntl
import os
import termios
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Protocol, final

READ_BYTES = 256 * 1024
READS_PER_WAKEUP = 4
"""So that a command that writes without end lets others have their turn."""
WINDOW_BYTES = 1 << 20
"""A streamed output that nobody takes stops being read here; the command then waits, as on any full pipe."""


class Sink(Protocol):
    """Takes the bytes of one output as they come."""

    def feed(self, data: bytes) -> bool:
        """Take some bytes; False: read no more until `PipeReader.resume`."""

    def end(self) -> None:
        """There are no more."""


@final
class PipeReader:
    """Reads one descriptor in the event loop and feeds a sink; owns the descriptor."""

    __slots__ = ("_closed", "_fd", "_full", "_left", "_loop", "_on_end", "_sink", "_watched")

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, sink: Sink, on_end: Callable[[], None]) -> None:
        """Take the descriptor; `resume` begins to watch it."""
        self._loop = loop
        self._fd = fd
        self._sink = sink
        self._on_end = on_end
        """Called once, after the sink's `end`."""
        self._watched = False
        self._full = False
        """The sink has enough for now."""
        self._left: int | None = None
        """Bytes that are still taken before it is closed; None: all that come."""
        self._closed = fd < 0
        if fd < 0:
            sink.end()

    @property
    def closed(self) -> bool:
        """Whether nothing more will come."""
        return self._closed

    @property
    def full(self) -> bool:
        """Whether its sink has enough for now."""
        return self._full

    def resume(self) -> None:
        """Begin to read as bytes come, or go on after the sink had enough."""
        self._full = False
        if not self._watched and not self._closed:
            self._watched = True
            self._loop.add_reader(self._fd, self._readable)

    def drain(self) -> None:
        """Read what lies in the pipe now, without waiting, unless its sink had enough."""
        if not self._full:
            self._readable()

    def finish(self) -> None:
        """Take only what lies in the pipe now, when its sink has room for it; then close, whoever still writes."""
        if self._closed:
            return
        in_pipe = array.array("i", [0])
        fcntl.ioctl(self._fd, termios.FIONREAD, in_pipe)
        self._left = in_pipe[0]
        if self._left == 0:
            self.close()
        else:
            self.drain()

    def close(self) -> None:
        """Read no more; the sink is told the end."""
        if not self._closed:
            self._closed = True
            self._unwatch()
            os.close(self._fd)
            self._sink.end()
            self._on_end()

    def _readable(self) -> None:
        for _ in range(READS_PER_WAKEUP):
            if self._closed:
                return
            try:
                data = os.read(self._fd, READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""  # EIO of a hung-up terminal is its end
            if not data:
                self.close()
                return
            wants_more = self._sink.feed(data)
            if self._left is not None:
                self._left -= len(data)
                if self._left <= 0:
                    self.close()
                    return
            if not wants_more:
                self._full = True
                self._unwatch()
                return

    def _unwatch(self) -> None:
        if self._watched:
            self._watched = False
            self._loop.remove_reader(self._fd)


@final
class Bounded:
    """A sink that keeps the first bytes up to a bound and counts the rest."""

    __slots__ = ("_kept_max", "_left", "_parts", "dropped_bytes", "on_first")

    def __init__(self, kept_max: int, on_first: Callable[[], None]) -> None:
        self._parts: list[bytes] = []
        self._left = kept_max
        self._kept_max = kept_max
        self.dropped_bytes = 0
        self.on_first: Callable[[], None] | None = on_first
        """Called with the first bytes."""

    def feed(self, data: bytes) -> bool:
        """Keep what fits."""
        if self.on_first is not None:
            self.on_first()
            self.on_first = None
        if len(data) <= self._left:
            self._parts.append(data)
            self._left -= len(data)
        else:
            self._parts.append(data[: self._left])
            self.dropped_bytes += len(data) - self._left
            self._left = 0
        return True

    def end(self) -> None:
        """Keep what was kept."""

    @property
    def kept(self) -> bytes:
        """The first bytes."""
        return b"".join(self._parts)


@final
class Dropped:
    """A sink that keeps nothing: output of a command whose caller is gone."""

    __slots__ = ()

    def feed(self, data: bytes) -> bool:
        """Drop it."""
        del data
        return True

    def end(self) -> None:
        """Nothing was kept."""


@final
class Chunks:
    """A sink that somebody reads as it comes: `async for chunk in chunks`, once; a slow reader slows the command."""

    __slots__ = ("_ended", "_left", "_parts", "_reader", "_waiter")

    def __init__(self) -> None:
        self._parts: deque[bytes] = deque()
        self._left = WINDOW_BYTES
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None
        self._reader: PipeReader | None = None

    def attach(self, reader: PipeReader) -> None:
        """Say whom to wake when there is room again."""
        self._reader = reader

    def feed(self, data: bytes) -> bool:
        """Queue the bytes; False when the window is full."""
        self._parts.append(data)
        self._left -= len(data)
        self._wake()
        return self._left > 0

    def end(self) -> None:
        """No more bytes come."""
        self._ended = True
        self._wake()

    async def read(self) -> bytes:
        """Return the next bytes, or b"" at the end."""
        while not self._parts:
            if self._ended:
                return b""
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        data = self._parts.popleft()
        was_full, self._left = self._left <= 0, self._left + len(data)
        if was_full and self._left > 0 and self._reader is not None:
            self._reader.resume()
        return data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while data := await self.read():
            yield data

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


@final
class PipeWriter:
    """Writes a command's standard input in the event loop; owns the descriptor. A reader that is gone is no error."""

    __slots__ = ("_closing", "_data", "_fd", "_loop", "_offset", "_waiters", "_watched")

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int) -> None:
        self._loop = loop
        self._fd = fd
        self._data = b""
        self._offset = 0
        self._watched = False
        self._closing = False
        """Close once everything is written."""
        self._waiters: list[asyncio.Future[None]] = []

    async def write(self, data: bytes) -> None:
        """Write bytes; returns when the kernel has all of them or nobody will ever read them."""
        self.write_nowait(data)
        while self._data:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def write_nowait(self, data: bytes) -> None:
        """Begin to write; what the pipe does not take now is written when it does."""
        if self._fd >= 0 and not self._closing:
            self._data, self._offset = self._data[self._offset :] + data, 0
            self._writable()

    def end(self) -> None:
        """Close after what is still to be written."""
        self._closing = True
        if not self._data:
            self.close()

    def close(self) -> None:
        """Close at once; bytes that were not taken are dropped."""
        if self._fd >= 0:
            self._unwatch()
            os.close(self._fd)
            self._fd = -1
        self._forget()

    def _writable(self) -> None:
        try:
            self._offset += os.write(self._fd, memoryview(self._data)[self._offset :])
        except BlockingIOError:
            self._watch()
            return
        except OSError:
            self.close()  # EPIPE: the command has closed its input or is gone
            return
        if self._offset < len(self._data):
            self._watch()
            return
        self._unwatch()
        self._forget()
        if self._closing:
            self.close()

    def _forget(self) -> None:
        self._data, self._offset = b"", 0
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _watch(self) -> None:
        if not self._watched:
            self._watched = True
            self._loop.add_writer(self._fd, self._writable)

    def _unwatch(self) -> None:
        if self._watched:
            self._watched = False
            self._loop.remove_writer(self._fd)
