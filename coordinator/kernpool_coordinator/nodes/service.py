"""Nodes as the link server and the API meet them: links, words of agents, health, removal."""

import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, final

from kernpool_coordinator.core.clock import Clock, Now
from kernpool_coordinator.core.session import NodeSession
from kernpool_coordinator.core.shapes import Listing
from kernpool_coordinator.errors import (
    ConflictError,
    CoordinatorError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    UnreachableError,
)
from kernpool_coordinator.events.commits import Commits
from kernpool_coordinator.events.log import Event, EventLog
from kernpool_coordinator.jobs.scheduler import Scheduler
from kernpool_coordinator.nodes.bodies import node_body
from kernpool_coordinator.nodes.health import Health, HealthChange, HealthMachine, NodeLost
from kernpool_coordinator.nodes.links import Links
from kernpool_coordinator.nodes.record import DATA_KEY_BYTES, DataKey, Node
from kernpool_coordinator.tokens.actor import SYSTEM, Actor
from kernpool_mesh import messages
from kernpool_mesh.messages import AttemptStatus, Heartbeat, HeartbeatAck, Hello, Inventory, SandboxStatus, Snapshot

DATA_KEY_LIFE_S: Final = 86_400.0
MASS_SILENCE: Final = (
    "more nodes fell silent at once than can be true: none is declared unreachable for now; "
    "look at this coordinator's own network first"
)

logger = logging.getLogger(__name__)


@final
@dataclass(frozen=True, slots=True)
class Greeting:
    """What every Welcome says."""

    coordinator_id: str
    cluster_id: str
    heartbeat_interval_s: float
    features: tuple[str, ...] = ()


class NodeListener(Protocol):
    """Who is told about nodes: the work that is on them."""

    def node_synced(self, node_id: str, attempts: Sequence[AttemptStatus], sandboxes: Sequence[SandboxStatus]) -> None:
        """Its link stands and it told all it holds; `NodeService.open` is called back once that was taken in."""
        ...

    def node_unlinked(self, node_id: str) -> None:
        """Its link broke; what was asked of it on that link gets no answer."""
        ...

    def node_unreachable(self, node_id: str) -> None:
        """It is silent for long."""
        ...

    def node_lost(self, node_id: str, cause: str) -> None:
        """Its work is given up."""
        ...


@final
class NodeService:
    """All nodes, their health and their links."""

    def __init__(
        self,
        scheduler: Scheduler,
        links: Links,
        health: HealthMachine,
        commits: Commits,
        events: EventLog,
        clock: Clock,
        listener: NodeListener,
    ) -> None:
        self.nodes: dict[str, Node] = {}
        """By id; removed ones stay."""
        self._scheduler = scheduler
        self._links = links
        self._health = health
        self._commits = commits
        self._events = events
        self._clock = clock
        self._listener = listener
        self._told_frozen = False
        self._settled_at = clock.now().mono + health.limits.reattach_s
        """Before this, nodes that have not linked yet are no mass silence."""

    def restore(self, node: Node) -> None:
        """Take a node from the store; it has the re-attach time to link."""
        self.nodes[node.id] = node
        if not node.removed:
            self.admit(node)

    def admit(self, node: Node) -> None:
        """Take a node that is not linked yet into health and placement."""
        self.nodes[node.id] = node
        self._health.add(node.id, self._clock.now().mono)
        self._scheduler.room(node.id, node.name)
        if node.inventory is not None:
            self._scheduler.set_inventory(node.id, node.inventory.total, node.inventory.gpus)

    # --- links ---

    def connected(self, session: NodeSession, hello: Hello, greeting: Greeting) -> messages.Welcome:
        """Take a new link; the Welcome to answer with."""
        node = self._node_of(session, hello)
        proto = min(hello.proto_max, messages.PROTO_MAX)
        if proto < max(hello.proto_min, messages.PROTO_MIN):
            raise InvalidError(
                f"node {node.id} speaks protocols {hello.proto_min} to {hello.proto_max}, this coordinator "
                f"{messages.PROTO_MIN} to {messages.PROTO_MAX}",
                hint="upgrade the older of the two",
            )
        older = self._links.add(session)
        if older is not None:
            self._listener.node_unlinked(node.id)
            older.close("a newer link of this node has taken its place")
        self._begin_link(node, hello)
        now = self._clock.now()
        self._tell(self._health.linked(node.id, now.mono))
        key = self._new_data_key(node, now)
        return messages.Welcome(
            proto, greeting.coordinator_id, greeting.cluster_id, now.unix, greeting.heartbeat_interval_s,
            data_key=key.key, data_key_id=key.id, features=list(greeting.features),
        )  # fmt: skip

    def disconnected(self, session: NodeSession, reason: str) -> None:
        """A link is gone."""
        if not self._links.remove(session):
            return
        node = self.nodes[session.node_id]
        self._listener.node_unlinked(node.id)
        if not node.removed:
            self._tell(self._health.link_lost(node.id, reason))

    def _node_of(self, session: NodeSession, hello: Hello) -> Node:
        node = self.nodes.get(session.node_id)
        if hello.node_id != session.node_id:
            raise ForbiddenError(f"the node says it is {hello.node_id} and its certificate says {session.node_id}")
        if node is None:
            # A genuine certificate without a record: the store was set back. It is adopted, not locked out.
            node = Node(session.node_id, "default", SYSTEM.name, session.node_id, "default", 1, self._clock.now().unix)
            self.admit(node)
            self._note(node, "adopted", "its certificate is genuine and the store had no record of it")
        if node.removed:
            raise ForbiddenError(
                f"node {node.id} was removed from this cluster", hint="enrol it anew with a new join token"
            )
        if self._links.get(node.id) is not None and hello.incarnation < node.incarnation:
            raise ConflictError(
                f"node {node.id} is linked already with a newer start of its agent ({node.incarnation} against "
                f"{hello.incarnation})",
                hint="is its state directory copied to a second machine? enrol that one anew",
            )
        return node

    def _begin_link(self, node: Node, hello: Hello) -> None:
        node.attempts, node.sandboxes = [], []
        node.inventory_is_fresh = False
        node.incarnation = max(node.incarnation, hello.incarnation)
        node.agent_version = hello.agent_version
        self._scheduler.set_open(node.id, is_open=False)
        self._commits.later([node.put()])

    # --- words of agents ---

    def heartbeat(self, session: NodeSession, beat: Heartbeat) -> None:
        """Answer a sign of life."""
        self.nodes[session.node_id].heartbeat = beat
        try:
            session.send_nowait(HeartbeatAck(beat.seq, self._clock.now().unix))
        except CoordinatorError:
            return  # its queue is full or it is closing: the next one will do

    def inventory(self, node_id: str, inventory: Inventory) -> None:
        """Take what the node has."""
        node = self.nodes[node_id]
        changed = inventory != node.inventory
        node.inventory, node.inventory_is_fresh = inventory, True
        if changed:
            node.name = inventory.hostname or node.name
            self._scheduler.room(node.id, node.name)
            self._scheduler.set_inventory(node.id, inventory.total, inventory.gpus)
            self._commits.later([node.put()])
        self._open_or_close(node)

    def snapshot(self, session: NodeSession, part: Snapshot) -> None:
        """Gather a snapshot; the last part completes it."""
        node = self.nodes[session.node_id]
        node.attempts += part.attempts
        node.sandboxes += part.sandboxes
        if not part.last:
            return
        attempts, node.attempts = node.attempts, []
        sandboxes, node.sandboxes = node.sandboxes, []
        self._links.set_synced(node.id)
        self._listener.node_synced(node.id, attempts, sandboxes)

    def heard(self, node_id: str) -> None:
        """Any message at all."""
        changes = self._health.heard(node_id, self._clock.now().mono)
        if changes:
            self._tell(changes)

    def open(self, node_id: str) -> None:
        """What the node holds was taken in: new work may come."""
        self._open_or_close(self.nodes[node_id])

    # --- time ---

    def tick(self, now: Now) -> None:
        """Look at silences and old keys."""
        self._tell(self._health.tick(now.mono))
        self._tell_freeze(now)
        for node in self.nodes.values():
            key = node.data_key
            if key is not None and now.mono - key.made_mono > DATA_KEY_LIFE_S:
                self._rotate(node, now)

    def _tell_freeze(self, now: Now) -> None:
        if self._health.frozen is self._told_frozen or now.mono < self._settled_at:
            return
        self._told_frozen = self._health.frozen
        verb, cause = "thawed", "the nodes are heard again, or the freeze is over"
        if self._told_frozen:
            verb, cause = "frozen", MASS_SILENCE
            logger.warning(MASS_SILENCE)
        self._commits.later([], [self._events.make(SYSTEM.name, verb, "server/health", SYSTEM.workspace, cause)])

    def _rotate(self, node: Node, now: Now) -> None:
        session = self._links.get(node.id)
        if session is None:
            return
        key = DataKey((node.data_key.id if node.data_key else 0) + 1, secrets.token_bytes(DATA_KEY_BYTES), now.mono)
        try:
            session.send_nowait(messages.DataKey(key.id, key.key))
        except CoordinatorError:
            return  # the old key still serves; the next tick tries again
        node.data_key = key

    def _new_data_key(self, node: Node, now: Now) -> DataKey:
        number = (node.data_key.id if node.data_key else int(now.unix)) + 1
        node.data_key = DataKey(number & 0x7FFFFFFF, secrets.token_bytes(DATA_KEY_BYTES), now.mono)
        return node.data_key

    # --- health ---

    def _tell(self, changes: Sequence[HealthChange | NodeLost]) -> None:
        for change in changes:
            node = self.nodes[change.node_id]
            match change:
                case NodeLost(cause=cause):
                    self._note(node, "lost", cause)
                    self._listener.node_lost(node.id, f"node {node.name} was {cause}")
                case HealthChange(after=after, cause=cause):
                    self._note(node, str(after), cause)
                    self._open_or_close(node)
                    if after is Health.UNREACHABLE:
                        self._listener.node_unreachable(node.id)

    def _open_or_close(self, node: Node) -> None:
        if node.removed or node.id not in self._scheduler.rooms:
            return
        is_open = (
            self._links.is_synced(node.id) and node.inventory_is_fresh and self._health.health(node.id) is Health.READY
        )
        self._scheduler.set_open(node.id, is_open=is_open)

    # --- removal ---

    async def remove(self, actor: Actor, id_or_name: str) -> None:
        """Refuse it from now on, hang up, and end its work as node_lost. Raises StoreError: then it stays."""
        node = self.find(id_or_name)
        event = self._event(node, "removed", "", actor.name)
        node.removed = True
        try:
            await self._commits.now([node.put()], [event])
        except CoordinatorError:
            node.removed = False
            raise
        self._scheduler.set_open(node.id, is_open=False)
        session = self._links.get(node.id)
        if session is not None:
            session.close("this node was removed from the cluster")
            self.disconnected(session, "removed")
        self._listener.node_lost(node.id, f"node {node.name} was removed by {actor.name}")
        self._health.remove(node.id)
        self._scheduler.forget_node(node.id)

    # --- questions ---

    def find(self, id_or_name: str) -> Node:
        """Find a node that is not removed. Raises NotFoundError, ConflictError for an ambiguous name."""
        node = self.nodes.get(id_or_name)
        if node is not None and not node.removed:
            return node
        named = [one for one in self.nodes.values() if one.name == id_or_name and not one.removed]
        if len(named) > 1:
            ids = ", ".join(sorted(one.id for one in named))
            raise ConflictError(f"{len(named)} nodes are called {id_or_name}: {ids}", hint="name it by its id")
        if not named:
            raise NotFoundError(f"There is no node {id_or_name}.", hint="kernpool node ls")
        return named[0]

    def session(self, node_id: str) -> NodeSession:
        """The node's live link. Raises NotFoundError, UnreachableError."""
        session = self._links.get(node_id)
        if session is not None:
            return session
        node = self.find(node_id)
        silence = self._health.silence_s(node_id, self._clock.now().mono)
        away = f"for {silence:.0f} s" if silence is not None else "since this coordinator started"
        raise UnreachableError(f"node {node.name} ({node_id}) is away {away}", hint=f"kernpool node show {node_id}")

    def data_key(self, node_id: str) -> tuple[int, bytes]:
        """What signs its data-plane tokens now. Raises NotFoundError, UnreachableError."""
        self.session(node_id)
        key = self.nodes[node_id].data_key
        assert key is not None, "a linked node has a data key"
        return key.id, key.key

    def address_of(self, node_id: str) -> str:
        """Where other nodes reach it best."""
        node = self.nodes.get(node_id)
        return node.address if node is not None else "127.0.0.1"

    def state_of(self, node: Node) -> str:
        """Ready, suspect, unreachable or removed."""
        return "removed" if node.removed else str(self._health.health(node.id))

    def body(self, node: Node) -> dict[str, Any]:
        """Give a NodeBody."""
        return self._bodies([node])[0]

    def page(self, limit: int, after: str) -> Listing:
        """NodeBody each, by name and id."""
        present = sorted(
            (node for node in self.nodes.values() if not node.removed and _cursor(node) > after), key=_cursor
        )
        items = self._bodies(present[:limit])
        return Listing(items, _cursor(present[limit - 1]) if len(present) > limit else "")

    def all_bodies(self) -> list[dict[str, Any]]:
        """NodeBody each, by name."""
        return self._bodies([node for node in sorted(self.nodes.values(), key=_cursor) if not node.removed])

    def _bodies(self, nodes: Sequence[Node]) -> list[dict[str, Any]]:
        jobs, mono = self._jobs_by_node(), self._clock.now().mono
        return [
            node_body(
                node,
                self.state_of(node),
                self._scheduler.rooms.get(node.id),
                None if node.removed else self._health.silence_s(node.id, mono),
                jobs.get(node.id, 0),
            )
            for node in nodes
        ]

    def _jobs_by_node(self) -> dict[str, int]:
        """Count the jobs with a live rank, by node; one walk for all nodes of a listing."""
        counts: dict[str, int] = {}
        for job in self._scheduler.jobs.jobs.values():
            for node_id in {attempt.node_id for attempt in job.attempts.values() if attempt.live}:
                counts[node_id] = counts.get(node_id, 0) + 1
        return counts

    def _event(self, node: Node, verb: str, cause: str, actor: str = SYSTEM.name) -> Event:
        return self._events.make(actor, verb, f"node/{node.id}", node.workspace, cause, {"name": node.name})

    def _note(self, node: Node, verb: str, cause: str) -> None:
        self._commits.later([node.put()] if verb == "adopted" else [], [self._event(node, verb, cause)])


def _cursor(node: Node) -> str:
    return f"{node.name} {node.id}"
