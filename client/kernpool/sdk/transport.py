"""HTTP over kept connections: a request out, an answer or a stream back; what may be repeated is repeated."""

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self, TypeVar, final

from kernpool.errors import ProtocolError, UnreachableError
from kernpool.protocol.calls import ANSWER_BYTES_MAX, Call
from kernpool.protocol.http1 import AnswerReader, HttpError, chunk, request_head
from kernpool.protocol.origin import CONTENT_TYPE_JSON, Origin
from kernpool.protocol.retries import Retries, TransportError, unreachable
from kernpool.sdk.connection import Connection

R = TypeVar("R")

CONNECT_TIMEOUT_S: Final = 10.0
NODE_CONNECT_TIMEOUT_S: Final = 2.0
"""A node that is not there is found out fast: the coordinator is the other way."""
IDLE_CONNECTIONS_MAX: Final = 32
"""Per origin."""
IDLE_S_MAX: Final = 60.0
"""The coordinator closes at 75 s: ours go first, so that no request meets a closing one."""
IDLE_S_MAX_ONCE: Final = 5.0
"""For a request that may not be repeated."""
FORGET_LIMIT_BYTES: Final = 64 * 1024
"""An answer that nobody wants is read to its end up to here, so that its connection can be kept."""


@final
@dataclass(frozen=True, slots=True)
class Request:
    """One request; `body` as bytes, or in pieces that travel chunked."""

    method: str
    path: str
    body: bytes | Iterable[bytes] | None = None
    content_type: str = CONTENT_TYPE_JSON
    repeatable: bool = True


@final
class Stream:
    """An answer whose body comes piece by piece; a context manager that gives its connection back."""

    __slots__ = ("_connection", "_reader", "_transport", "headers", "status")

    def __init__(self, transport: "Transport", connection: Connection, reader: AnswerReader) -> None:
        self._transport = transport
        self._connection: Connection | None = connection
        self._reader = reader
        self.status = reader.status
        self.headers = reader.headers

    def read(self, timeout_s: float | None = None) -> bytes:
        """Give the next bytes; empty: the end. Raises TransportError when it breaks or nothing comes in time."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        reader = self._reader
        while True:
            body = reader.take_body()
            if body or reader.ended:
                return body
            if self._connection is None:
                raise TransportError("the answer was closed", sent=True)
            _feed(reader, self._connection, deadline_s)

    def read_all(self, timeout_s: float | None, bytes_max: int = ANSWER_BYTES_MAX) -> bytes:
        """Give the whole body and close. Raises TransportError, ProtocolError when it is too long."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        pieces: list[bytes] = []
        size = 0
        with self:
            while True:
                left_s = None if deadline_s is None else max(deadline_s - time.monotonic(), 0.0)
                piece = self.read(left_s)
                if not piece:
                    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
                size += len(piece)
                if size > bytes_max:
                    raise ProtocolError(f"the server's answer is longer than {bytes_max} bytes")
                pieces.append(piece)

    def close(self) -> None:
        """Give the connection back, or close it where the answer has not ended."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._reader.ended and self._reader.keep_alive:
            self._transport.keep(connection)
        else:
            self._transport.drop(connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@final
class Transport:
    """Connections by origin, shared by threads."""

    __slots__ = ("_addresses", "_idle", "_lock", "closed")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[object, list[Connection]] = defaultdict(list)
        """Origin's address -> connections, the last used at the end."""
        self._addresses: dict[Connection, object] = {}
        """Every open connection -> its origin's address."""
        self.closed = False

    def run(self, origin: Origin, call: Call[R]) -> R:
        """Make a call and read its answer. Raises KernpoolError."""
        request = Request(call.method, call.path, call.body, repeatable=call.repeatable)

        def once() -> tuple[int, bytes, str | None]:
            deadline_s = time.monotonic() + call.timeout_s
            stream = self.open(origin, request, call.timeout_s)
            body = stream.read_all(max(deadline_s - time.monotonic(), 0.0))
            return stream.status, body, stream.headers.get("retry-after")

        retries = new_retries(repeatable=call.repeatable, timeout_s=call.timeout_s)
        while True:
            status, body, retry_after = with_retries(retries, origin, once)
            pause_s = retries.after_status(status, retry_after, time.monotonic())
            if pause_s is None:
                return call.answer(status, body)
            time.sleep(pause_s)

    def open(self, origin: Origin, request: Request, timeout_s: float | None) -> Stream:
        """Send a request once and wait for the head of its answer. Raises TransportError."""
        connection, is_fresh = self._take(origin, repeatable=request.repeatable)
        try:
            return self._open_on(connection, origin, request, timeout_s)
        except TransportError as error:
            self.drop(connection)
            if is_fresh or error.timed_out or not request.repeatable or not isinstance(request.body, bytes | None):
                raise
        except BaseException:
            self.drop(connection)
            raise
        # The server had closed a kept connection just as we used it: no failure of its own, so no pause.
        connection = self._connect(origin)
        try:
            return self._open_on(connection, origin, request, timeout_s)
        except BaseException:
            self.drop(connection)
            raise

    def connect(self, origin: Origin) -> Connection:
        """Make a connection of the caller's own (a WebSocket's); it is dropped with `drop`."""
        return self._connect(origin)

    def _open_on(self, connection: Connection, origin: Origin, request: Request, timeout_s: float | None) -> Stream:
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        _send_request(connection, origin, request, deadline_s)
        reader = AnswerReader()
        while not reader.status:
            _feed(reader, connection, deadline_s)
        return Stream(self, connection, reader)

    def _take(self, origin: Origin, *, repeatable: bool) -> tuple[Connection, bool]:
        """Take an idle connection or make one: (connection, whether it is new)."""
        idle_s_max = IDLE_S_MAX if repeatable else IDLE_S_MAX_ONCE
        while True:
            with self._lock:
                idle = self._idle.get(origin.address)
                connection = idle.pop() if idle else None
            if connection is None:
                return self._connect(origin), True
            if time.monotonic() - connection.idle_since_s < idle_s_max and not connection.is_stale:
                return connection, False
            self.drop(connection)

    def _connect(self, origin: Origin) -> Connection:
        if self.closed:
            raise UnreachableError("This client is closed.")
        connection = Connection.open(origin, NODE_CONNECT_TIMEOUT_S if origin.is_node else CONNECT_TIMEOUT_S)
        with self._lock:
            self._addresses[connection] = origin.address
        return connection

    def keep(self, connection: Connection) -> None:
        """Put a connection back for the next request."""
        connection.idle_since_s = time.monotonic()
        with self._lock:
            idle = self._idle[self._addresses[connection]] if connection in self._addresses else None
            if idle is not None and len(idle) < IDLE_CONNECTIONS_MAX and not self.closed:
                idle.append(connection)
                return
        self.drop(connection)

    def drop(self, connection: Connection) -> None:
        """Close a connection."""
        with self._lock:
            self._addresses.pop(connection, None)
        connection.close()

    def close(self) -> None:
        """Close every connection, idle or not; later calls raise UnreachableError."""
        with self._lock:
            self.closed = True
            connections = list(self._addresses)
            self._idle.clear()
        for connection in connections:
            self.drop(connection)


def new_retries(*, repeatable: bool, timeout_s: float) -> Retries:
    """Begin the tries of a call."""
    return Retries(repeatable=repeatable, deadline_s=time.monotonic() + timeout_s, random=random.random)


def with_retries(retries: Retries, origin: Origin, once: Callable[[], R]) -> R:
    """Try until it works or `retries` gives up. Raises UnreachableError."""
    while True:
        try:
            return once()
        except TransportError as error:
            # A node that cannot be reached is not tried again: the coordinator is the other way, at once.
            is_hopeless = origin.is_node and not error.sent
            pause_s = None if is_hopeless else retries.after_error(error, time.monotonic())
            if pause_s is None:
                raise unreachable(origin, error) from error
        time.sleep(pause_s)


def _feed(reader: AnswerReader, connection: Connection, deadline_s: float | None) -> None:
    """Read once. Raises TransportError, also for what is no HTTP."""
    data = connection.receive(deadline_s)
    try:
        if data:
            reader.feed(data)
        else:
            reader.feed_eof()
    except HttpError as error:
        raise TransportError(str(error), sent=True) from error


def _send_request(connection: Connection, origin: Origin, request: Request, deadline_s: float | None) -> None:
    body = request.body
    target = origin.prefix + request.path
    if body is None or isinstance(body, bytes):
        length = None if body is None and request.method in ("GET", "DELETE") else len(body or b"")
        headers = origin.headers(request.content_type if body is not None else None, length)
        # One segment for head and body: a server that reads both at once answers sooner.
        connection.send(request_head(request.method, target, headers) + (body or b""), deadline_s)
        return
    connection.send(request_head(request.method, target, origin.headers(request.content_type)), deadline_s)
    try:
        for piece in body:
            if piece:
                connection.send(chunk(piece), deadline_s)
        connection.send(chunk(b""), deadline_s)
    except TransportError:
        # A server that refuses an upload answers and closes while we still send: its answer tells why.
        connection.wait(read=True, write=False, deadline_s=time.monotonic() + 1.0)
