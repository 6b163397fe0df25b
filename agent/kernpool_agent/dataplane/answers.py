"""Answers that are streamed: bytes as they come, with back-pressure, cut visibly when they cannot be finished."""

from collections.abc import AsyncIterator
from typing import Final, final

from aiohttp import web

from kernpool_agent.dataplane.problems import ProblemError

_FLUSH_S: Final = 10.0
"""How long a client may take for the last bytes of an answer that is cut."""
STARTED: Final = web.RequestKey("kernpool.started", bool)
"""Set on a request once its answer's head is on the wire: from then on an error can only cut it."""


@final
class StreamedAnswer:
    """A chunked answer. It ends well by `finish` alone; else the connection is cut, so nobody takes a part for all."""

    __slots__ = ("_headers", "_length", "_request", "_response")

    def __init__(
        self, request: web.Request, content_type: str, headers: dict[str, str] | None = None, length: int | None = None
    ) -> None:
        self._request = request
        self._headers = {"Content-Type": content_type, **(headers or {})}
        self._length = length
        self._response: web.StreamResponse | None = None

    async def start(self) -> web.StreamResponse:
        """Send the head now, unless it is sent."""
        if self._response is None:
            self._response = web.StreamResponse(headers=self._headers)
            if self._length is not None:
                self._response.content_length = self._length
            self._request[STARTED] = True
            await self._response.prepare(self._request)
        return self._response

    async def write(self, data: bytes) -> None:
        """Send bytes; waits while the client takes none. Raises ConnectionError when it is gone."""
        await (self._response or await self.start()).write(data)

    async def finish(self, data: bytes = b"") -> web.StreamResponse:
        """Send the last bytes and the end mark; an answer that has not begun goes out in one piece."""
        if self._response is None:
            return web.Response(body=data, headers=self._headers)
        await self._response.write_eof(data)
        return self._response


def cut(request: web.Request) -> None:
    """Break the connection of an answer that cannot be finished: after what is queued, without the end mark."""
    transport = request.transport
    request.protocol.force_close()  # also keeps aiohttp from writing another answer behind this one
    if transport is not None:
        request.loop.call_later(_FLUSH_S, transport.abort)


async def stream_all(answer: StreamedAnswer, parts: AsyncIterator[bytes]) -> web.StreamResponse:
    """Send every part; the head waits for the first one, so an error before it is still a Problem."""
    async for part in parts:
        await answer.write(part)
    return await answer.finish()


def query_int(request: web.Request, name: str, default: int, *, maximum: int) -> int:
    """Read a query parameter as an integer from 0 to `maximum`; raises ProblemError (400)."""
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and int(text) <= maximum):
        raise ProblemError(400, "invalid", f"{name}: expected an integer from 0 to {maximum}, not {text[:40]!r}")
    return int(text)


def query_flag(request: web.Request, name: str) -> bool:
    """Read a query parameter that is 0 (the default) or 1; raises ProblemError (400)."""
    return query_int(request, name, 0, maximum=1) == 1
