"""What happens to a node, told to the work that is on it; and what creates of sandboxes ask of the nodes."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, final

from kernpool_coordinator.errors import CoordinatorError, NoCapacityError
from kernpool_coordinator.jobs.scheduler import Scheduler
from kernpool_coordinator.jobs.service import JobService
from kernpool_coordinator.nodes.links import Links
from kernpool_coordinator.nodes.record import Node
from kernpool_coordinator.nodes.service import NodeService
from kernpool_coordinator.sandboxes.creates import Creates
from kernpool_coordinator.sandboxes.pools import Pools
from kernpool_coordinator.sandboxes.service import SandboxService
from kernpool_coordinator.sandboxes.spread import Candidate
from kernpool_mesh.messages import AttemptStatus, SandboxStatus

logger = logging.getLogger(__name__)


@final
class Fleet:
    """Between the nodes' room and those of jobs and sandboxes, so that they need not know each other."""

    def __init__(self) -> None:
        self._taking_in: dict[str, asyncio.Task[None]] = {}
        """Snapshots being taken in, by node."""

    def join(
        self,
        jobs: JobService,
        nodes: NodeService,
        sandboxes: SandboxService,
        creates: Creates,
        pools: Pools,
        links: Links,
        scheduler: Scheduler,
    ) -> None:
        """Get to know the rooms; called once."""
        self._jobs = jobs
        self._nodes = nodes
        self._sandboxes = sandboxes
        self._creates = creates
        self._pools = pools
        self._links = links
        self._scheduler = scheduler

    # --- NodeListener ---

    def node_synced(self, node_id: str, attempts: Sequence[AttemptStatus], sandboxes: Sequence[SandboxStatus]) -> None:
        """Take in what the node holds, then let new work come."""
        self._sandboxes.synced(node_id, sandboxes)
        task = asyncio.create_task(self._take_in(node_id, attempts), name=f"take in {node_id}")
        self._taking_in[node_id] = task
        task.add_done_callback(lambda done: self._taken_in(node_id, done))

    def node_unlinked(self, node_id: str) -> None:
        """Creates on it get no more answers."""
        self._creates.node_unlinked(node_id)

    def node_unreachable(self, node_id: str) -> None:
        """What was never sent there goes elsewhere."""
        self._jobs.node_unreachable(node_id)

    def node_lost(self, node_id: str, cause: str) -> None:
        """Its work is given up."""
        self._sandboxes.node_lost(node_id, cause)
        self._jobs.node_lost(node_id, cause)

    async def _take_in(self, node_id: str, attempts: Sequence[AttemptStatus]) -> None:
        session = self._links.get(node_id)
        try:
            await self._jobs.synced(node_id, attempts)
        except CoordinatorError as error:
            # The store could not be read: the node stays closed, and a new link asks anew.
            logger.warning("what node %s holds could not be taken in: %s", node_id, error.message)
            if session is not None:
                session.close("the store could not be read; link again")
            return
        if self._links.get(node_id) is session and session is not None:
            self._nodes.open(node_id)
            self._jobs.settle()
            self._pools.tell(node_id)

    def _taken_in(self, node_id: str, done: asyncio.Task[None]) -> None:
        if self._taking_in.get(node_id) is done:
            del self._taking_in[node_id]
        if not done.cancelled() and done.exception() is not None:
            logger.error("taking in what node %s holds failed", node_id, exc_info=done.exception())

    # --- Surroundings of creates ---

    def candidates(self, node: str | None) -> list[Candidate]:
        """Ready nodes with sandboxes; that one alone when named."""
        if node is None:
            found = [_candidate(one) for one in self._nodes.nodes.values() if self._may_have_sandboxes(one)]
            if not found:
                raise NoCapacityError(self._why_none(), hint="kernpool node ls")
            return found
        chosen = self._nodes.find(node)
        self._nodes.session(chosen.id)
        if not self._may_have_sandboxes(chosen):
            raise NoCapacityError(self._why_not(chosen), hint=f"kernpool node show {chosen.name}")
        return [_candidate(chosen)]

    def away(self) -> list[str]:
        """Nodes that are part of the cluster and have not told what they hold."""
        return [one.id for one in self._nodes.nodes.values() if not one.removed and not self._links.is_synced(one.id)]

    def remove_on(self, node_id: str, ids: list[str]) -> None:
        """Ask a node to remove sandboxes that nobody wants."""
        self._sandboxes.remove_on(node_id, ids)

    def note(self, actor: str, verb: str, workspace: str, data: dict[str, Any]) -> None:
        """Write an event with the next rows."""
        self._sandboxes.note(actor, verb, workspace, data)

    def _may_have_sandboxes(self, node: Node) -> bool:
        room = self._scheduler.rooms.get(node.id)
        return room is not None and room.open and node.inventory is not None and bool(node.inventory.isolation)

    def _why_none(self) -> str:
        ready = [one for one in self._nodes.nodes.values() if not one.removed and self._is_open(one)]
        if not ready:
            return "no node is ready"
        return self._why_not(ready[0])

    def _is_open(self, node: Node) -> bool:
        room = self._scheduler.rooms.get(node.id)
        return room is not None and room.open

    def _why_not(self, node: Node) -> str:
        if not self._is_open(node):
            return f"node {node.name} is {self._nodes.state_of(node)} and takes no new work"
        problems = node.inventory.isolation_problems if node.inventory else []
        return f"node {node.name} can hold no sandboxes: {' '.join(problems) or 'it has no isolation that works'}"

    async def close(self) -> None:
        """Wait for what is being taken in."""
        await asyncio.gather(*self._taking_in.values(), return_exceptions=True)


def _candidate(node: Node) -> Candidate:
    assert node.inventory is not None, "only nodes with an inventory are asked"
    free = node.heartbeat.free if node.heartbeat is not None else node.inventory.total
    return Candidate(node.id, node.name, node.inventory.total, free)
