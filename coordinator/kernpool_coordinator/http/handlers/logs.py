"""Job logs: raw bytes from the node that has them, followed across broken links."""

import asyncio
from typing import Annotated, Final
from urllib.parse import urlencode

from aiohttp.web import Response, StreamResponse
from pydantic import Field

from kernpool_coordinator.core.shapes import AttemptPlace
from kernpool_coordinator.errors import ConflictError, CoordinatorError
from kernpool_coordinator.http.relay import answered, relay
from kernpool_coordinator.http.route import Answer, Call, Media, QueryModel, Route
from kernpool_coordinator.nodeside.nodehttp import Grant, NodeAnswer, NodeHttpError, NodeRequest
from kernpool_coordinator.tokens.actor import Verb

START_POLL_S: Final = 30.0
RETRY_PAUSE_S: Final = 0.2
"""Between two tries while the link stands and the node's data plane does not answer (an agent that is starting)."""


class LogQuery(QueryModel):
    """Which part of the log."""

    index: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Rank."""
    offset: Annotated[int, Field(ge=0, lt=1 << 62)] = 0
    """First byte wanted; `KP-Log-Offset` of the answer tells which one comes (earlier ones may be rotated away)."""
    tail: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """Only so many last lines."""
    follow: bool = False
    """Wait for the start, go on until the attempt has ended and all was sent."""
    fence: Annotated[int, Field(ge=0)] = 0
    """With follow: `KP-Log-Fence` of an attempt that was read to its end; wait for a later one, or the job's end."""


async def read_log(call: Call[LogQuery, None]) -> Answer:
    """The log of a rank's latest attempt."""
    query, job_id = call.query, call.path["job"]
    place = await call.api.core.attempt_place(call.actor, job_id, query.index)
    grant = Grant(call.actor.name, f"job/{job_id}", ("logs",))
    with call.api.endless(call.request):
        if not query.follow:
            if not place.started:
                return _no_log(place)
            return await relay(call.api, call.request, place.node_id, grant, _target(place, query, query.offset))
        place = await _begun(call, place)
        if not place.started or place.fence <= query.fence:
            return _empty(place)
        return await _Follower(call, place, grant).run()


async def _begun(call: Call[LogQuery, None], place: AttemptPlace) -> AttemptPlace:
    """The place once an attempt later than the one already read has begun, or the job is over."""
    core, query = call.api.core, call.query
    while not place.job_ended and not (place.started and place.fence > query.fence):
        if place.started:  # the core has nothing to wait on for a restart but the job's own end
            await core.wait_job(call.actor, place.job_id, 1.0)
            place = await core.attempt_place(call.actor, place.job_id, query.index)
        else:
            place = await core.wait_attempt_started(call.actor, place.job_id, query.index, START_POLL_S)
    return place


def _no_log(place: AttemptPlace) -> Response:
    if place.job_ended:
        return _empty(place)
    raise ConflictError(
        f"Rank {place.index} of {place.job_id} has not started, so it has no log yet.",
        hint="Add follow=1 to wait for it.",
    )


def _empty(place: AttemptPlace) -> Response:
    """It never began, or nothing follows."""
    return Response(
        body=b"", headers={"Content-Type": Media.BYTES, "KP-Log-Offset": "0", "KP-Log-Fence": str(place.fence)}
    )


def _target(place: AttemptPlace, query: LogQuery, offset: int, *, tail: int | None = None) -> str:
    """The data plane's path and query."""
    wanted = {"offset": str(offset), "follow": "1" if query.follow else "0"}
    tail = tail if query.follow else query.tail
    if tail is not None:
        wanted["tail"] = str(tail)
    return f"/v1/jobs/{place.job_id}/{place.index}/logs?{urlencode(wanted)}"


class _NodeGoneError(Exception):
    """The bytes stopped before the end."""


class _Follower:
    """Asks the node again from the next byte whenever the stream breaks, for as long as the settings allow."""

    def __init__(self, call: Call[LogQuery, None], place: AttemptPlace, grant: Grant) -> None:
        self._call = call
        self._place = place
        self._grant = grant
        self._next = call.query.offset
        """Offset of the next byte."""
        self._fence = ""
        """KP-Log-Fence of the first answer: another one is another log."""
        self._response: StreamResponse | None = None
        """None until the head is sent."""
        self._progress_s = asyncio.get_running_loop().time()
        """When the last byte or head came."""

    async def run(self) -> StreamResponse:
        """Relay until the attempt's end; an error before the head is an ordinary one, after it a cut."""
        while True:
            try:
                return await self._once()
            except (CoordinatorError, _NodeGoneError) as error:
                if self._response is None:
                    raise
                if not await self._back():
                    raise ConnectionResetError("the node did not come back") from error

    async def _once(self) -> StreamResponse:
        query = self._call.query
        tail = query.tail if self._response is None else None
        request = NodeRequest("GET", _target(self._place, query, self._next, tail=tail))
        async with self._call.api.nodes.request(self._place.node_id, self._grant, request) as answer:
            if answer.status != 200:
                if self._response is not None:
                    raise _NodeGoneError(f"status {answer.status}")
                return await answered(self._call.request, answer)
            response = self._response or await self._begin(answer)
            self._check_same(answer)
            try:
                async for chunk in answer.chunks():
                    self._next += len(chunk)
                    self._progress_s = asyncio.get_running_loop().time()
                    await response.write(chunk)
            except NodeHttpError as error:
                raise _NodeGoneError(str(error)) from error
            return response

    async def _begin(self, answer: NodeAnswer) -> StreamResponse:
        """Send the head."""
        offset, self._fence = _log_headers(answer)
        self._next = int(offset)
        headers = {"Content-Type": Media.BYTES, "KP-Log-Offset": offset, "KP-Log-Fence": self._fence}
        self._response = StreamResponse(headers=headers)
        await self._response.prepare(self._call.request)
        return self._response

    def _check_same(self, answer: NodeAnswer) -> None:
        """Cut when the node goes on elsewhere: only a new answer's head can tell the client where."""
        if _log_headers(answer) != (str(self._next), self._fence):
            raise ConnectionResetError("the log goes on at another place")

    async def _back(self) -> bool:
        """Wait until it is worth another try; False when nothing came for too long."""
        api = self._call.api
        left_s = self._progress_s + api.settings.log_reconnect_s - asyncio.get_running_loop().time()
        if left_s <= 0:
            return False
        if api.nodes.linked(self._place.node_id):
            await asyncio.sleep(RETRY_PAUSE_S)
            return True
        return await api.nodes.arrivals.wait(self._place.node_id, left_s)


def _log_headers(answer: NodeAnswer) -> tuple[str, str]:
    headers = answer.message.headers
    return headers.get("KP-Log-Offset", "0"), headers.get("KP-Log-Fence", "")


ROUTES: Final = (
    Route(
        method="GET", path="/api/v1/jobs/{job}/logs", handler=read_log, verb=Verb.LOGS, kind="job", key="job",
        query=LogQuery, media=Media.BYTES, long=True,
        summary="The log of a rank, raw; with follow=1 from its start to its end.",
    ),
)  # fmt: skip
