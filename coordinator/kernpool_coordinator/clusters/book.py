"""The book of clusters: a named hold on `num_nodes` distinct nodes, kept until somebody takes it down.

(none) --launch -c NAME--> PENDING --all nodes held--> UP --down--> DOWN --last job ended--> (none)
                              ^                         |            ^
                              `------ a node is lost ---'            |
                              `------------------ down --------------'
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, final

from kernpool_coordinator.placement import Amounts, Ask, Holder, Holding, Room, Shortage, Waiting, fits
from kernpool_coordinator.placement.room import Order

ClusterKey = tuple[str, str]
"""(workspace, name)"""


class ClusterState(StrEnum):
    """Where a cluster stands."""

    PENDING = "pending"
    """At least one of its nodes is not held yet, or no more; its jobs run on those that are."""
    UP = "up"
    """All of its nodes are held."""
    DOWN = "down"
    """Being given back: its jobs are ending, no new one is taken, the name is free once they have."""


STEPS: Final[Mapping[ClusterState, frozenset[ClusterState]]] = {
    ClusterState.PENDING: frozenset({ClusterState.UP, ClusterState.DOWN}),
    ClusterState.UP: frozenset({ClusterState.PENDING, ClusterState.DOWN}),
    ClusterState.DOWN: frozenset(),
}


class IllegalClusterStepError(Exception):
    """A step that the table does not have: a fault of ours."""


@final
@dataclass(slots=True, eq=False)
class Cluster:
    """One named hold."""

    workspace: str
    name: str
    owner: str
    num_nodes: int
    asks: tuple[Ask, ...]
    """Alternatives of what each node must give; one alone once it has been granted."""
    order: Order
    """Its place in the fleet's line: that of the job it was made for."""
    created_unix_s: float
    state: ClusterState = ClusterState.PENDING
    rooms: dict[str, Room] = field(default_factory=dict)
    """Node id -> the part of that node it holds."""
    holdings: dict[str, Holding] = field(default_factory=dict)
    """Node id -> what it holds there; the same keys as `rooms`."""
    detail: str = ""
    """Why it waits."""

    @property
    def key(self) -> ClusterKey:
        """What names it."""
        return (self.workspace, self.name)

    @property
    def holder(self) -> Holder:
        """Who it is in a node's room."""
        return Holder(f"cluster/{self.workspace}/{self.name}", self.order, lasting=True)

    @property
    def missing(self) -> int:
        """Nodes that it should have and has not."""
        return self.num_nodes - len(self.rooms)

    def waiting(self) -> Waiting:
        """Stand in the fleet's line for the missing nodes, all distinct from those it has."""
        return Waiting(f"cluster {self.name}", self.asks, self.missing, self.order, frozenset(self.rooms))

    def step(self, state: ClusterState) -> None:
        """Go to a state. Raises IllegalClusterStepError."""
        if state is self.state:
            return
        if state not in STEPS[self.state]:
            raise IllegalClusterStepError(f"cluster {self.name}: {self.state} -> {state} is no step")
        self.state = state

    def grant(self, ask: Ask, holdings: Iterable[Holding], nodes: Mapping[str, Room]) -> None:
        """Take what the fleet gave; the caller has taken the holdings in the nodes' rooms."""
        self.asks = (ask,)
        for holding in holdings:
            self.holdings[holding.node_id] = holding
            self.rooms[holding.node_id] = nodes[holding.node_id].part(holding)
        if not self.missing:
            self.detail = ""
            self.step(ClusterState.UP)

    def lose(self, node_id: str) -> bool:
        """A node is gone for good; False when it had none of it."""
        if self.rooms.pop(node_id, None) is None:
            return False
        del self.holdings[node_id]
        if self.state is ClusterState.UP:
            self.step(ClusterState.PENDING)
        return True

    def shortage(self, asks: Iterable[Ask], count: int) -> str:
        """Say why a task could never run in this cluster, or nothing."""
        if count > self.num_nodes:
            return f"it has {self.num_nodes} node{'s' if self.num_nodes > 1 else ''}, the task asks for {count}"
        shortages = [shortage for ask in asks if (shortage := self._shortage(ask)) is not None]
        return "" if len(shortages) < len(tuple(asks)) else str(shortages[0])

    def _shortage(self, ask: Ask) -> Shortage | None:
        """Compare with what each of its nodes holds or will hold, whichever alternative that is."""
        amounts = [Amounts(a.cpu_millis, a.memory_mib, a.disk_mib, {a.gpu_model.casefold(): a.gpus}) for a in self.asks]
        shortages = [fits(there, ask) for there in amounts]
        return None if None in shortages else shortages[0]


@final
class ClusterBook:
    """All clusters that are not gone."""

    def __init__(self) -> None:
        self.clusters: dict[ClusterKey, Cluster] = {}

    def get(self, workspace: str, name: str) -> Cluster | None:
        """Find one."""
        return self.clusters.get((workspace, name))

    def add(self, cluster: Cluster) -> None:
        """Take a new one, or one from the store."""
        assert cluster.key not in self.clusters, f"cluster {cluster.name} stands already"
        self.clusters[cluster.key] = cluster

    def remove(self, cluster: Cluster) -> None:
        """Forget one that is gone."""
        self.clusters.pop(cluster.key, None)

    def waiting(self) -> list[Cluster]:
        """Those that miss nodes, in no order."""
        return [one for one in self.clusters.values() if one.state is ClusterState.PENDING and one.missing]

    def on_node(self, node_id: str) -> list[Cluster]:
        """Those that hold a part of a node."""
        return [one for one in self.clusters.values() if node_id in one.rooms]
