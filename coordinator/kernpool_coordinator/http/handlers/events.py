"""Events: what changed, who did it and why, as a page or as they happen."""

from typing import Annotated, Final

from pydantic import Field

from kernpool.bodies import EventBody
from kernpool_coordinator.http import ndjson
from kernpool_coordinator.http.queries import PAGE_ITEMS_MAX, Filter
from kernpool_coordinator.http.route import Answer, Call, Media, QueryModel, Route
from kernpool_coordinator.tokens.actor import Verb


class EventsQuery(QueryModel):
    """Which events."""

    after: Annotated[int, Field(ge=-1, lt=1 << 62)] | None = None
    """Only events with a greater id; none given: a page from the first on, with follow only new ones."""
    limit: Annotated[int, Field(ge=1, le=PAGE_ITEMS_MAX)] = 100
    """Of a page; following has no end."""
    object: Filter = ""
    """Only those of one object, e.g. `job/j-17`; not with follow."""
    follow: bool = False


async def list_events(call: Call[EventsQuery, None]) -> Answer:
    """A page, oldest first; with follow, NDJSON without end."""
    query = call.query
    if query.follow:
        after = -1 if query.after is None else query.after
        with call.api.endless(call.request):
            return await ndjson.follow(call.request, call.api.core.follow_events(call.actor, after=after))
    after = max(query.after or 0, 0)
    return await call.api.core.events(call.actor, after=after, limit=query.limit, object_=query.object)


ROUTES: Final = (
    Route(
        method="GET", path="/api/v1/events", handler=list_events, verb=Verb.VIEW, kind="event",
        query=EventsQuery, answer=EventBody, page=True, also=Media.NDJSON, long=True,
        summary="Events, oldest first; with follow=1 one line each (NDJSON) as they happen.",
    ),
)  # fmt: skip
