"""Nodes: list, show, remove."""

from typing import Final

from kernpool.bodies import NodeBody
from kernpool_coordinator.http.queries import PageQuery
from kernpool_coordinator.http.route import Answer, Call, Media, Route
from kernpool_coordinator.tokens.actor import Verb


async def list_nodes(call: Call[PageQuery, None]) -> Answer:
    """By name."""
    return await call.api.core.nodes(call.actor, limit=call.query.limit, after=call.query.after)


async def show(call: Call[None, None]) -> Answer:
    """By id or name."""
    return await call.api.core.node(call.actor, call.path["node"])


async def remove(call: Call[None, None]) -> Answer:
    """Refused from now on; its link is cut."""
    await call.api.core.remove_node(call.actor, call.path["node"])
    return None


ROUTES: Final = (
    Route(
        method="GET", path="/api/v1/nodes", handler=list_nodes, verb=Verb.VIEW, kind="node",
        query=PageQuery, answer=NodeBody, page=True, summary="Nodes by name.",
    ),
    Route(
        method="GET", path="/api/v1/nodes/{node}", handler=show, verb=Verb.VIEW, kind="node", key="node",
        answer=NodeBody, summary="One node, by id or name.",
    ),
    Route(
        method="DELETE", path="/api/v1/nodes/{node}", handler=remove, verb=Verb.REMOVE, kind="node", key="node",
        status=204, media=Media.NOTHING,
        summary="Remove a node: its certificate is refused at once and its work ends as node_lost.",
    ),
)  # fmt: skip
