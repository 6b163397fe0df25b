"""Clusters: list, show, down."""

from typing import Final

from kernpool.bodies import ClusterBody
from kernpool_coordinator.http.queries import PageQuery
from kernpool_coordinator.http.route import Answer, Call, Route
from kernpool_coordinator.tokens.actor import Verb


async def list_clusters(call: Call[PageQuery, None]) -> Answer:
    """By name."""
    return await call.api.core.clusters(call.actor, limit=call.query.limit, after=call.query.after)


async def show(call: Call[None, None]) -> Answer:
    """By name."""
    return await call.api.core.cluster(call.actor, call.path["name"])


async def down(call: Call[None, None]) -> Answer:
    """Its jobs are cancelled, its hold is given back."""
    return await call.api.core.down(call.actor, call.path["name"])


ROUTES: Final = (
    Route(
        method="GET", path="/api/v1/clusters", handler=list_clusters, verb=Verb.VIEW, kind="cluster",
        query=PageQuery, answer=ClusterBody, page=True, summary="Clusters by name.",
    ),
    Route(
        method="GET", path="/api/v1/clusters/{name}", handler=show, verb=Verb.VIEW, kind="cluster", key="name",
        answer=ClusterBody, summary="One cluster.",
    ),
    Route(
        method="DELETE", path="/api/v1/clusters/{name}", handler=down, verb=Verb.REMOVE, kind="cluster", key="name",
        answer=ClusterBody, summary="Take a cluster down: its jobs are cancelled and its hold is given back.",
    ),
)  # fmt: skip
