"""One TCP or TLS connection with deadlines, safe for one thread that reads and another that writes."""

import contextlib
import select
import socket
import threading
import time
from typing import Any, Final, Self, final

from kernpool.protocol.origin import Origin
from kernpool.protocol.retries import TransportError

READ_BYTES: Final = 256 * 1024
KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
)
"""A follower of a silent log has no deadline: a dead peer is found by TCP itself, after 70 s."""


@final
class Connection:
    """Owns its socket; non-blocking underneath, so that waiting is always ours and always has an end."""

    __slots__ = ("_is_tls", "_lock", "_socket", "_want_write", "idle_since_s")

    def __init__(self, sock: socket.socket, *, is_tls: bool) -> None:
        self._socket = sock
        self._is_tls = is_tls
        self._lock = threading.Lock()
        """OpenSSL objects take one call at a time."""
        self._want_write = False
        """TLS must write before it can go on reading."""
        self.idle_since_s = 0.0
        """When it was put back into the pool."""

    @classmethod
    def open(cls, origin: Origin, timeout_s: float) -> Self:
        """Connect. Raises TransportError (nothing was sent)."""
        deadline_s = time.monotonic() + timeout_s
        host: Any = origin.host.encode() if origin.host.isascii() else origin.host  # bytes skip the idna codec
        try:
            sock = socket.create_connection((host, origin.port), timeout_s)
        except OSError as error:
            raise TransportError(_reason(error, timeout_s), sent=False) from error
        try:
            for level, option, value in KEEPALIVE:
                sock.setsockopt(level, option, value)
            if origin.is_tls:
                from kernpool.tls import tls_context

                sock.settimeout(max(deadline_s - time.monotonic(), 0.001))
                sock = tls_context(origin).wrap_socket(sock, server_hostname=origin.server_name or origin.host)
            sock.settimeout(0)
        except OSError as error:  # ssl.SSLError is one
            sock.close()
            raise TransportError(_reason(error, timeout_s), sent=False) from error
        except BaseException:
            sock.close()
            raise
        return cls(sock, is_tls=origin.is_tls)

    def fileno(self) -> int:
        """Give the descriptor, for polling."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close it; whoever waits on it gets an error."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    @property
    def is_stale(self) -> bool:
        """An idle connection became readable: the server closed it, or says what nobody asked."""
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def send_some(self, data: memoryview) -> int:
        """Send what the socket takes now; 0: it must be waited for. Raises TransportError."""
        try:
            with self._lock:
                return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            if _wants_io(error):
                return 0
            raise TransportError(_reason(error), sent=True) from error

    def receive_some(self) -> bytes | None:
        """Read what is there; None: nothing yet; empty: the end. Raises TransportError."""
        try:
            with self._lock:
                return self._socket.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            if _wants_io(error):
                return None
            if self._is_tls and type(error).__name__ == "SSLEOFError":
                return b""
            raise TransportError(_reason(error), sent=True) from error

    def wait(self, *, read: bool, write: bool, deadline_s: float | None) -> int:
        """Wait until it can be read or written; gives the poll mask. Raises TransportError at the deadline."""
        poll = select.poll()
        poll.register(self.fileno(), (select.POLLIN if read else 0) | (select.POLLOUT if write else 0))
        left_ms = None if deadline_s is None else max(0, int((deadline_s - time.monotonic()) * 1000) + 1)
        for _, mask in poll.poll(left_ms):
            return mask
        raise TransportError("no answer in time", sent=True, timed_out=True)

    def send(self, data: bytes, deadline_s: float | None) -> None:
        """Send all. Raises TransportError."""
        sent = self.send_some(memoryview(data))
        if sent == len(data):
            return
        view = memoryview(data)[sent:]
        while view:
            self.wait(read=False, write=True, deadline_s=deadline_s)
            view = view[self.send_some(view) :]

    def receive(self, deadline_s: float | None) -> bytes:
        """Read some bytes; empty: the end. Raises TransportError."""
        data = self.receive_some() if self._is_tls else None
        while data is None:
            self.wait(read=True, write=False, deadline_s=deadline_s)
            data = self.receive_some()
        return data


def _wants_io(error: OSError) -> bool:
    return type(error).__name__ in ("SSLWantReadError", "SSLWantWriteError")


def _reason(error: OSError, timeout_s: float | None = None) -> str:
    if isinstance(error, TimeoutError) and timeout_s is not None:
        return f"no answer within {timeout_s:g} s"
    verify = getattr(error, "verify_message", "")
    return f"certificate not accepted: {verify}" if verify else (error.strerror or str(error) or type(error).__name__)
