"""NDJSON answers: batches of documents written as lines, one write for each batch."""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, cast, final

from aiohttp.web import BaseRequest, StreamResponse
from pydantic_core import to_json

from kernpool_coordinator.http.route import Media

Batches = AsyncIterator[list[dict[str, Any]]]


@final
class _LinesResponse(StreamResponse):
    """Its head leaves together with the first lines, in one packet."""

    _send_headers_immediately = False


def lines(batch: Sequence[Any]) -> bytes:
    """One line for each document."""
    return b"\n".join([*map(to_json, batch), b""])


async def answer(request: BaseRequest, batches: Batches) -> StreamResponse:
    """Write every batch as it comes.

    The first batch is awaited before the head is sent, so that what raises before it is an ordinary error answer. An
    error after it cuts the connection: the client misses the last line and the last chunk, and knows.
    """
    response = _LinesResponse(headers=_HEADERS)
    async with _closing(batches):
        first: list[dict[str, Any]] = await anext(batches, [])
        await response.prepare(request)
        await _write(response, first, batches)
    return response


async def follow(request: BaseRequest, batches: Batches) -> StreamResponse:
    """As `answer`, but the head is sent at once: the first batch may be hours away."""
    response = StreamResponse(headers=_HEADERS)
    async with _closing(batches):
        await response.prepare(request)
        await _write(response, [], batches)
    return response


_HEADERS = {"Content-Type": Media.NDJSON, "Cache-Control": "no-store"}


async def _write(response: StreamResponse, first: list[dict[str, Any]], batches: Batches) -> None:
    if first:
        await response.write(lines(first))
    async for batch in batches:
        await response.write(lines(batch))


def _closing(batches: Batches) -> contextlib.AbstractAsyncContextManager[Any]:
    """Ends a generator with the answer, whatever ended that."""
    if hasattr(batches, "aclose"):
        return contextlib.aclosing(cast("AsyncGenerator[Any, None]", batches))
    return contextlib.nullcontext()
