"""GET /v1/jobs/{id}/{index}/logs: one attempt's log as raw bytes, from an offset or the last lines, followed or not."""

from typing import TYPE_CHECKING, Final

from aiohttp import web

from kernpool_agent.dataplane.answers import StreamedAnswer, query_flag, query_int
from kernpool_agent.dataplane.problems import ProblemError, invalid

if TYPE_CHECKING:
    from kernpool_agent.dataplane.plane import DataPlane
    from kernpool_agent.jobs.log import JobLog

CONTENT_TYPE: Final = "application/octet-stream"
OFFSET_HEADER: Final = "KP-Log-Offset"
"""Offset of the first byte sent: greater than the one asked for when the bytes before it were rotated away."""
FENCE_HEADER: Final = "KP-Log-Fence"
"""Which attempt of the rank this log is of."""
LINES_MAX: Final = 1_000_000
_OFFSET_MAX: Final = 1 << 62


async def read_log(plane: "DataPlane", request: web.Request, job_id: str) -> web.StreamResponse:
    """Send the log; with follow=1 until the attempt has ended and all was sent."""
    index_text = request.match_info["index"]
    if not (index_text.isascii() and index_text.isdigit() and len(index_text) <= 9):
        raise invalid(f"the rank must be a number from 0, not {index_text[:40]!r}")
    follow = query_flag(request, "follow")
    with plane.jobs.log(job_id, int(index_text)) as log:
        offset = _first_offset(request, log)
        end = log.end_offset
        # Read before the head goes out: from now on rotation cannot take the segment that the answer begins in.
        data, following = log.read(offset)
        offset = following - len(data)
        headers = {OFFSET_HEADER: str(offset), FENCE_HEADER: str(log.fence)}
        answer = StreamedAnswer(request, CONTENT_TYPE, headers, None if follow else max(0, end - offset))
        await answer.start()
        whole = await (_follow(answer, log, offset) if follow else _send_until(answer, log, offset, end))
        if not whole:
            # Rotation overtook a slow reader. It comes back with its offset and reads in the header what is lost.
            raise ProblemError(410, "rotated", f"the log of {job_id} rotates faster than it is read")
        return await answer.finish()


def _first_offset(request: web.Request, log: "JobLog") -> int:
    offset = query_int(request, "offset", 0, maximum=_OFFSET_MAX)
    if "tail" in request.query:
        offset = max(offset, log.tail_offset(query_int(request, "tail", 0, maximum=LINES_MAX)))
    return min(max(offset, log.start_offset), log.end_offset)


async def _send_until(answer: StreamedAnswer, log: "JobLog", offset: int, end: int) -> bool:
    """Send the bytes [offset, end); False when some were rotated away meanwhile."""
    while offset < end:
        data, following = log.read(offset)
        if not data or following - len(data) != offset:
            return False
        await answer.write(data[: end - offset])
        offset = following
    return True


async def _follow(answer: StreamedAnswer, log: "JobLog", offset: int) -> bool:
    """Send all until the end of the attempt; False when bytes were rotated away before they could be sent."""
    while True:
        ended = log.ended  # asked before the read: what is read after an end is the last
        data, following = log.read(offset)
        if data:
            if following - len(data) != offset:
                return False
            await answer.write(data)
            offset = following
        elif ended:
            return True
        else:
            await log.wait_beyond(offset)
