"""Parked pools: what every node keeps ready."""

from typing import Final

from kernpool.bodies import PoolsBody
from kernpool_coordinator.http.route import Answer, Call, Route
from kernpool_coordinator.tokens.actor import Verb


async def show(call: Call[None, None]) -> Answer:
    """The whole set."""
    return {"pools": await call.api.core.pools(call.actor)}


async def replace(call: Call[None, PoolsBody]) -> Answer:
    """The whole set anew."""
    pools = [pool.model_dump() for pool in call.body.pools]
    return {"pools": await call.api.core.set_pools(call.actor, pools)}


ROUTES: Final = (
    Route(
        method="GET", path="/api/v1/pools", handler=show, verb=Verb.VIEW, kind="pool", answer=PoolsBody,
        summary="The parked pools that every node keeps.",
    ),
    Route(
        method="PUT", path="/api/v1/pools", handler=replace, verb=Verb.CHANGE, kind="pool", body=PoolsBody,
        answer=PoolsBody, summary="Replace the set of parked pools; templates not named are drained.",
    ),
)  # fmt: skip
