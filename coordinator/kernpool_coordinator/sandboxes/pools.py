"""The parked pools that every node is told to keep."""

import json
import logging
from typing import Any, Final, final

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy import Connection, select

from kernpool.bodies import TemplateBody
from kernpool_coordinator.errors import CoordinatorError, InvalidError
from kernpool_coordinator.events.commits import Commits
from kernpool_coordinator.events.log import EventLog
from kernpool_coordinator.nodes.links import Links
from kernpool_coordinator.sandboxes.templates import template_of
from kernpool_coordinator.store import Delete, Operation, Put, Store, schema
from kernpool_coordinator.tokens.actor import Actor
from kernpool_mesh.messages import PoolTarget, SetPools

POOLS_MAX: Final = 256
PARKED_MAX: Final = 10_000

logger = logging.getLogger(__name__)
Json = dict[str, Any]


class PoolBody(BaseModel):
    """One parked pool, on each node."""

    model_config = ConfigDict(extra="forbid")

    template: TemplateBody = TemplateBody()
    parked: int = Field(ge=0, le=PARKED_MAX)
    drain_after_s: float = Field(600.0, ge=0)


@final
class Pools:
    """The whole set; nodes are told at each link and at each change."""

    def __init__(self, links: Links, commits: Commits, events: EventLog, *, reply_timeout_s: float) -> None:
        self._links = links
        self._commits = commits
        self._events = events
        self._reply_timeout_s = reply_timeout_s
        self._pools: list[PoolBody] = []
        self._rows: set[str] = set()
        """Keys that the store has."""
        self._told = False
        """A set was made by someone: before that each node's pools follow what is used there."""

    async def load(self, store: Store) -> None:
        """Read them all."""
        self._pools = await store.read(_read)
        self._rows = {_key(pool) for pool in self._pools}
        self._told = bool(self._pools)

    def bodies(self) -> list[Json]:
        """[{template, parked, drain_after_s}]."""
        return [pool.model_dump() for pool in self._pools]

    async def replace(self, actor: Actor, bodies: list[Json], nodes: list[str]) -> list[Json]:
        """Replace the set and tell the nodes. Raises InvalidError, StoreError: then nothing changes."""
        pools = _checked(bodies)
        wanted = {_key(pool): pool for pool in pools}
        operations: list[Operation] = [
            Delete(schema.pools, {"template": key}) for key in self._rows if key not in wanted
        ]
        operations += [Put(schema.pools, _row(pool, actor)) for pool in pools]
        event = self._events.make(actor.name, "changed", "pool/*", actor.workspace, data={"pools": len(pools)})
        await self._commits.now(operations, [event])
        self._pools, self._rows, self._told = pools, set(wanted), True
        for node_id in nodes:
            self.tell(node_id)
        return self.bodies()

    def tell(self, node_id: str) -> None:
        """Send the set to a node, if one was made."""
        if not self._told:
            return
        targets = [PoolTarget(template_of(pool.template), pool.parked, pool.drain_after_s) for pool in self._pools]

        def answered(code: str, error: str) -> None:
            if code:
                logger.warning("node %s did not take its pools: %s", node_id, error or code)

        try:
            self._links.send(
                node_id, lambda request_id: SetPools(request_id, targets), "SetPools", self._reply_timeout_s, answered
            )
        except CoordinatorError as error:
            logger.info("node %s is told its pools when it links again: %s", node_id, error.message)


def _checked(bodies: list[Json]) -> list[PoolBody]:
    if len(bodies) > POOLS_MAX:
        raise InvalidError(f"{len(bodies)} pools, at most {POOLS_MAX} are kept")
    try:
        pools = [PoolBody.model_validate(body) for body in bodies]
    except ValidationError as error:
        details = [
            {"line": 0, "column": 0, "key": ".".join(map(str, item["loc"])), "message": item["msg"]}
            for item in error.errors(include_url=False)
        ]
        raise InvalidError("the pools are not valid: nothing was changed", details=details) from None
    if len({_key(pool) for pool in pools}) < len(pools):
        raise InvalidError("two pools have the same template")
    return pools


def _key(pool: PoolBody) -> str:
    return json.dumps(pool.template.model_dump(), sort_keys=True)


def _row(pool: PoolBody, actor: Actor) -> Json:
    return {
        "template": _key(pool),
        "workspace": actor.workspace,
        "owner": actor.name,
        "parked": pool.parked,
        "drain_after_s": pool.drain_after_s,
    }


def _read(connection: Connection) -> list[PoolBody]:
    return [
        PoolBody(template=TemplateBody(**json.loads(row.template)), parked=row.parked, drain_after_s=row.drain_after_s)
        for row in connection.execute(select(schema.pools))
    ]
