"""Jobs: submit, list, show, cancel, wait, and a token for direct access to a rank's node."""

from typing import Annotated, Final

from pydantic import Field

from kernpool.bodies import AccessBody, JobBody, JobState, SubmitJob
from kernpool_coordinator.core.shapes import Listing
from kernpool_coordinator.errors import UnreachableError
from kernpool_coordinator.http.access import access
from kernpool_coordinator.http.queries import Filter, PageQuery
from kernpool_coordinator.http.route import Answer, Call, QueryModel, Route
from kernpool_coordinator.tokens.actor import Verb


class JobsQuery(PageQuery):
    """Which jobs."""

    cluster: Filter = ""
    state: Annotated[tuple[JobState, ...], Field(max_length=8)] = ()
    """As often as needed: jobs in any of these."""


class WaitQuery(QueryModel):
    """How long to wait."""

    timeout_s: Annotated[float, Field(ge=0, le=600)] = 30
    """At most `wait_s_max` of the coordinator's settings is waited; ask again while the job has not ended."""


class RankQuery(QueryModel):
    """Which rank of the job."""

    index: Annotated[int, Field(ge=0, le=100_000)] = 0


async def submit(call: Call[None, SubmitJob]) -> Answer:
    """Durable once answered."""
    return await call.api.core.submit_job(call.actor, call.body)


async def list_jobs(call: Call[JobsQuery, None]) -> Answer:
    """Newest first."""
    query = call.query
    pages = [
        await call.api.core.jobs(call.actor, cluster=query.cluster, state=state, limit=query.limit, after=query.after)
        for state in dict.fromkeys(query.state or ("",))
    ]
    return pages[0] if len(pages) == 1 else merged(pages, query.limit)


def merged(pages: list[Listing], limit: int) -> Listing:
    """One page, newest first, of pages of the same listing that select different jobs."""
    items = sorted((item for page in pages for item in page.items), key=lambda job: -int(job["id"].removeprefix("j-")))
    more = len(items) > limit or any(page.next for page in pages)
    return Listing(items[:limit], items[:limit][-1]["id"] if more and items else "")


async def show(call: Call[None, None]) -> Answer:
    """By id."""
    return await call.api.core.job(call.actor, call.path["job"])


async def cancel(call: Call[None, None]) -> Answer:
    """Asks for the end; the answer is the job as it is now."""
    return await call.api.core.cancel_job(call.actor, call.path["job"])


async def wait(call: Call[WaitQuery, None]) -> Answer:
    """The job once it has ended, or as it is when the time is over."""
    timeout_s = min(call.query.timeout_s, call.api.settings.wait_s_max)
    with call.api.endless(call.request):
        return await call.api.core.wait_job(call.actor, call.path["job"], timeout_s)


async def open_access(call: Call[RankQuery, None]) -> Answer:
    """A way straight to the node of one rank, for its log."""
    job_id = call.path["job"]
    place = await call.api.core.attempt_place(call.actor, job_id, call.query.index)
    if not place.node_id:
        raise UnreachableError(
            f"Rank {place.index} of {job_id} has no node yet.",
            hint=f"GET /api/v1/jobs/{job_id} says what it waits for.",
        )
    return access(call.api, call.actor, place.node_id, f"job/{job_id}", ("logs",))


ROUTES: Final = (
    Route(
        method="POST", path="/api/v1/jobs", handler=submit, verb=Verb.CREATE, kind="job", status=201,
        body=SubmitJob, answer=JobBody, summary="Submit a job (launch, or exec in a cluster that must be there).",
    ),
    Route(
        method="GET", path="/api/v1/jobs", handler=list_jobs, verb=Verb.VIEW, kind="job",
        query=JobsQuery, answer=JobBody, page=True, summary="Jobs, newest first.",
    ),
    Route(
        method="GET", path="/api/v1/jobs/{job}", handler=show, verb=Verb.VIEW, kind="job", key="job",
        answer=JobBody, summary="One job.",
    ),
    Route(
        method="POST", path="/api/v1/jobs/{job}/cancel", handler=cancel, verb=Verb.CHANGE, kind="job", key="job",
        answer=JobBody, summary="Cancel a job; one that has ended stays as it is.",
    ),
    Route(
        method="GET", path="/api/v1/jobs/{job}/wait", handler=wait, verb=Verb.VIEW, kind="job", key="job",
        query=WaitQuery, answer=JobBody, long=True, summary="Wait until a job has ended (long poll).",
    ),
    Route(
        method="POST", path="/api/v1/jobs/{job}/access", handler=open_access, verb=Verb.LOGS, kind="job", key="job",
        query=RankQuery, answer=AccessBody, summary="A short-lived token for reading a rank's log at its node.",
    ),
)  # fmt: skip
