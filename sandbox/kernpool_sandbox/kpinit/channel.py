"""One connection to a kp-init socket: requests matched to their answers, events handed on, all in the event loop."""

import array
import asyncio
import contextlib
import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Self, final

from kernpool_sandbox.kpinit.errors import GoneError, NoAnswerError, ProtocolError
from kernpool_sandbox.kpinit.wire import (
    FRAME_BYTES_MAX,
    FRAME_FDS_MAX,
    PROTO_MAX,
    PROTO_MIN,
    REPLY_BYTES_MAX,
    Frame,
    Op,
    Tag,
    decode,
    encode,
    get_str,
)

REQUEST_DEADLINE_S: Final = 10.0
SOCKET_PATH_BYTES_MAX: Final = 100
_CONTROL_BYTES: Final = socket.CMSG_SPACE(FRAME_FDS_MAX * 4)
_FRAMES_PER_TURN: Final = 16
_CONNECT_RETRY_S: Final = 0.002


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors that nobody wants."""
    for fd in fds:
        os.close(fd)


def failure(frame: Frame) -> OSError:
    """Return the error that a refused request (a < 0) stands for."""
    number = -frame.a
    detail = frame.values().get(Tag.DETAIL, b"")
    return OSError(number, os.strerror(number), get_str(detail) or None)


async def wait_fd(
    fd: int, *, writable: bool = False, timeout_s: float | None = REQUEST_DEADLINE_S, what: str = "a descriptor"
) -> None:
    """Wait until a descriptor is readable (or writable); raises NoAnswerError after the timeout."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    add, remove = (loop.add_writer, loop.remove_writer) if writable else (loop.add_reader, loop.remove_reader)
    add(fd, wake)
    try:
        await asyncio.wait_for(ready, timeout_s)
    except TimeoutError as error:
        raise NoAnswerError(f"{what} was not ready within {timeout_s} s") from error
    finally:
        remove(fd)


async def _connect(sock: socket.socket, path: str, deadline: float) -> None:
    loop = asyncio.get_running_loop()
    while True:
        try:
            sock.connect(path)
        except BlockingIOError as error:  # its backlog is full
            if loop.time() >= deadline:
                raise NoAnswerError(f"{path} does not accept connections") from error
            await asyncio.sleep(_CONNECT_RETRY_S)
        except (ConnectionRefusedError, FileNotFoundError) as error:
            raise GoneError(f"nothing listens on {path}") from error
        else:
            return


@final
class Channel:
    """One connection. `on_event` gets every event frame and must take its descriptors; `on_gone` is called once."""

    def __init__(self, sock: socket.socket, path: str, on_event: Callable[[Frame], None]) -> None:
        self._sock = sock
        self._fd = sock.fileno()
        self._path = path
        self._on_event = on_event
        self._loop = asyncio.get_running_loop()
        self._seq = 0
        self._waiting: dict[int, asyncio.Future[Frame]] = {}
        """Requests without an answer yet."""
        self._outbox: deque[tuple[bytes, list[int]]] = deque()
        """Packets that did not fit into the socket's buffer, with their own copies of the descriptors."""
        self._open = True
        self.on_gone: Callable[[], None] = lambda: None
        self._loop.add_reader(self._fd, self._readable)

    @classmethod
    async def open(
        cls, path: Path | str, on_event: Callable[[Frame], None], timeout_s: float = REQUEST_DEADLINE_S
    ) -> tuple[Self, Frame]:
        """Connect, say hello and return the channel with the answer; raises GoneError, NoAnswerError, ProtocolError."""
        name = str(path)
        if len(os.fsencode(name)) > SOCKET_PATH_BYTES_MAX:
            raise ValueError(f"the socket path is over {SOCKET_PATH_BYTES_MAX} bytes: {name}")
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            await _connect(sock, name, deadline)
        except BaseException:
            sock.close()
            raise
        channel = cls(sock, name, on_event)
        try:
            hello = await channel.call(Op.HELLO, PROTO_MIN, PROTO_MAX, timeout_s=timeout_s)
        except OSError as error:
            channel.close()
            raise ProtocolError(f"{name} speaks no protocol in {PROTO_MIN}..{PROTO_MAX}: {error}") from error
        except BaseException:
            channel.close()
            raise
        return channel, hello

    @property
    def is_open(self) -> bool:
        """Whether the other side has not closed."""
        return self._open

    def request(
        self, op: Op, a: int = 0, b: int = 0, body: bytes = b"", fds: Sequence[int] = ()
    ) -> asyncio.Future[Frame]:
        """Send a request now; the future is its answer, or GoneError. The descriptors stay the caller's."""
        if not self._open:
            raise GoneError(f"{self._path} is gone")
        if len(body) + 16 > FRAME_BYTES_MAX:
            raise OSError(errno.E2BIG, f"a request of {len(body)} bytes is over the limit of {FRAME_BYTES_MAX}")
        self._seq = self._seq % 0x7FFFFFFF + 1
        future: asyncio.Future[Frame] = self._loop.create_future()
        self._waiting[self._seq] = future
        self._send(encode(op, self._seq, a, b, body), fds)
        return future

    async def call(
        self,
        op: Op,
        a: int = 0,
        b: int = 0,
        body: bytes = b"",
        fds: Sequence[int] = (),
        *,
        timeout_s: float = REQUEST_DEADLINE_S,
    ) -> Frame:
        """Send a request and return its answer; raises OSError with the errno of a refusal."""
        future = self.request(op, a, b, body, fds)
        timer = self._loop.call_later(timeout_s, self._too_late, future, op, timeout_s)
        try:
            frame = await future
        finally:
            timer.cancel()
        if frame.a < 0:
            close_all(frame.fds)
            raise failure(frame)
        return frame

    def close(self) -> None:
        """Close the connection; what still waits gets GoneError. `on_gone` is not called."""
        self.on_gone = lambda: None
        self._lost(GoneError(f"the connection to {self._path} was closed here"))

    def _too_late(self, future: asyncio.Future[Frame], op: Op, timeout_s: float) -> None:
        if not future.done():
            future.set_exception(NoAnswerError(f"{self._path} did not answer {op.name} within {timeout_s} s"))

    def _send(self, packet: bytes, fds: Sequence[int]) -> None:
        if self._outbox or not self._try_send(packet, fds):
            if not self._open:
                return
            self._outbox.append((packet, [os.dup(fd) for fd in fds]))
            self._loop.add_writer(self._fd, self._writable)

    def _try_send(self, packet: bytes, fds: Sequence[int]) -> bool:
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self._sock.sendmsg([packet], control, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError as error:
            self._lost(GoneError(f"{self._path} is gone: {error.strerror}"))
            return False
        return True

    def _writable(self) -> None:
        while self._outbox and self._try_send(*self._outbox[0]):
            close_all(self._outbox.popleft()[1])
        if not self._outbox and self._open:
            self._loop.remove_writer(self._fd)

    def _readable(self) -> None:
        for _ in range(_FRAMES_PER_TURN):
            if not self._open or not self._read_one():
                return

    def _read_one(self) -> bool:
        fds = array.array("i")
        try:
            packet, control, flags, _ = self._sock.recvmsg(
                REPLY_BYTES_MAX, _CONTROL_BYTES, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return False
        except OSError as error:
            self._lost(GoneError(f"{self._path} is gone: {error.strerror}"))
            return False
        for level, kind, data in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        if not packet:
            self._lost(GoneError(f"{self._path} is gone"))
        elif flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
            close_all(fds)
            self._lost(ProtocolError(f"a message from {self._path} was cut"))
        else:
            self._handle(packet, fds.tolist())
        return True

    def _handle(self, packet: bytes, fds: list[int]) -> None:
        try:
            frame = decode(packet, fds)
        except ProtocolError as error:
            close_all(fds)
            self._lost(error)
            return
        if frame.seq == 0:
            self._on_event(frame)
            return
        future = self._waiting.pop(frame.seq, None)
        if future is None or future.done():  # it came too late for whoever asked
            close_all(fds)
        else:
            future.set_result(frame)

    def _lost(self, error: Exception) -> None:
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._sock.close()
        for _, fds in self._outbox:
            close_all(fds)
        self._outbox.clear()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(error)
                with contextlib.suppress(Exception):
                    future.exception()  # a future that nobody awaits any more is no fault
        self.on_gone()
