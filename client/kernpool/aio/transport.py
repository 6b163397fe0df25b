"""HTTP by aiohttp: a request out, an answer or a stream back; what may be repeated is repeated."""

import asyncio
import random
import time
from collections.abc import AsyncIterable, Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self, TypeVar, final

import aiohttp
from yarl import URL

from kernpool.errors import ProtocolError, UnreachableError
from kernpool.protocol.calls import ANSWER_BYTES_MAX, Call
from kernpool.protocol.origin import CONTENT_TYPE_JSON, Origin
from kernpool.protocol.retries import Retries, TransportError, unreachable
from kernpool.tls import tls_context

R = TypeVar("R")

CONNECT_TIMEOUT_S: Final = 10.0
NODE_CONNECT_TIMEOUT_S: Final = 2.0
KEEPALIVE_S: Final = 60.0
"""The coordinator closes at 75 s: ours go first."""
READ_BYTES: Final = 1 << 20


@final
@dataclass(frozen=True, slots=True)
class Request:
    """One request; `body` as bytes, or in pieces that travel chunked."""

    method: str
    path: str
    body: bytes | AsyncIterable[bytes] | None = None
    content_type: str = CONTENT_TYPE_JSON
    repeatable: bool = True


@final
class Stream:
    """An answer whose body comes piece by piece; an async context manager."""

    __slots__ = ("_response", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.headers.items()}

    async def read(self, timeout_s: float | None = None) -> bytes:
        """Give the next bytes; empty: the end. Raises TransportError when it breaks or nothing comes in time."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._response.content.readany()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise translated(error, sent=True) from error

    async def read_all(self, timeout_s: float | None, bytes_max: int = ANSWER_BYTES_MAX) -> bytes:
        """Give the whole body and close. Raises TransportError, ProtocolError when it is too long."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        pieces: list[bytes] = []
        size = 0
        async with self:
            while piece := await self.read(None if deadline_s is None else max(deadline_s - time.monotonic(), 0.0)):
                size += len(piece)
                if size > bytes_max:
                    raise ProtocolError(f"the server's answer is longer than {bytes_max} bytes")
                pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()


@final
class Transport:
    """One aiohttp session, made when first used, bound to its loop."""

    __slots__ = ("_session", "closed")

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self.closed = False

    def session(self) -> aiohttp.ClientSession:
        """Give the session. Raises UnreachableError once closed."""
        if self.closed:
            raise UnreachableError("This client is closed.")
        if self._session is None:
            # No limit: 240 execs at once are 240 streams, and the coordinator has its own bounds.
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S)
            self._session = aiohttp.ClientSession(
                connector=connector, auto_decompress=False, trust_env=False, read_bufsize=READ_BYTES
            )
        return self._session

    async def run(self, origin: Origin, call: Call[R]) -> R:
        """Make a call and read its answer. Raises KernpoolError."""
        request = Request(call.method, call.path, call.body, repeatable=call.repeatable)

        async def once() -> tuple[int, bytes, str | None]:
            deadline_s = time.monotonic() + call.timeout_s
            stream = await self.open(origin, request, call.timeout_s)
            body = await stream.read_all(max(deadline_s - time.monotonic(), 0.0))
            return stream.status, body, stream.headers.get("retry-after")

        retries = new_retries(repeatable=call.repeatable, timeout_s=call.timeout_s)
        while True:
            status, body, retry_after = await with_retries(retries, origin, once)
            pause_s = retries.after_status(status, retry_after, time.monotonic())
            if pause_s is None:
                return call.answer(status, body)
            await asyncio.sleep(pause_s)

    async def open(self, origin: Origin, request: Request, timeout_s: float | None) -> Stream:
        """Send a request once and wait for the head of its answer. Raises TransportError."""
        connect_s = NODE_CONNECT_TIMEOUT_S if origin.is_node else CONNECT_TIMEOUT_S
        headers = {"Authorization": f"Bearer {origin.token}", **dict(origin.headers()[2:])}
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        try:
            async with asyncio.timeout(timeout_s):
                response = await self.session().request(
                    request.method,
                    url_of(origin, request.path),
                    data=request.body,
                    headers=headers,
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=None, connect=connect_s),
                    ssl=tls_context(origin) if origin.is_tls else True,
                    server_hostname=origin.server_name or None,
                )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise translated(error, sent=not isinstance(error, aiohttp.ClientConnectorError)) from error
        return Stream(response)

    async def close(self) -> None:
        """Close every connection."""
        self.closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()


def url_of(origin: Origin, path: str) -> URL:
    """Give a whole URL; the path is quoted already."""
    return URL(f"{origin.url}{origin.prefix}{path}", encoded=True)


def translated(error: Exception, *, sent: bool) -> TransportError:
    """Turn aiohttp's errors into ours."""
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return TransportError("no connection in time", sent=False)
    if isinstance(error, TimeoutError):
        return TransportError("no answer in time", sent=True, timed_out=True)
    reason = getattr(getattr(error, "os_error", error), "strerror", None) or str(error) or type(error).__name__
    return TransportError(reason, sent=sent)


def new_retries(*, repeatable: bool, timeout_s: float) -> Retries:
    """Begin the tries of a call."""
    return Retries(repeatable=repeatable, deadline_s=time.monotonic() + timeout_s, random=random.random)


async def with_retries(retries: Retries, origin: Origin, once: Callable[[], Awaitable[R]]) -> R:
    """Try until it works or `retries` gives up. Raises UnreachableError."""
    while True:
        try:
            return await once()
        except TransportError as error:
            is_hopeless = origin.is_node and not error.sent
            pause_s = None if is_hopeless else retries.after_error(error, time.monotonic())
            if pause_s is None:
                raise unreachable(origin, error) from error
        await asyncio.sleep(pause_s)
