"""The scheduler: ties the books of jobs and clusters to the rooms of the nodes, and fills what is free.

Every event about jobs, clusters or nodes goes through `settle`: it gives back what ended, then plans the lines that the
event may have helped, and hands out the instructions of both. Synchronous; nothing here waits.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import nsmallest
from typing import Final, final

from kernpool_coordinator.clusters.book import Cluster, ClusterBook, ClusterKey, ClusterState
from kernpool_coordinator.core.clock import Now
from kernpool_coordinator.jobs.book import JobBook
from kernpool_coordinator.jobs.instructions import (
    DropCluster,
    Free,
    Instruction,
    NoteCluster,
    SaveCluster,
)
from kernpool_coordinator.jobs.record import Attempt, Job
from kernpool_coordinator.placement import Engine, Holder, Holding, Line, Placement, Room, Start, Waiting, plan
from kernpool_coordinator.placement.room import Order
from kernpool_mesh.messages import Gpu, Resources

FOREVER: Final = float("inf")
LINE_MAX: Final = 1_000
"""Of a line, as many are looked at in one pass."""


@final
class Scheduler:
    """Jobs, clusters and rooms as one truth."""

    def __init__(self, engine: Engine, jitter: Callable[[], float]) -> None:
        self.jobs = JobBook(jitter)
        self.clusters = ClusterBook()
        self.rooms: dict[str, Room] = {}
        """Node id -> its room; kept while the node is away."""
        self._engine = engine
        self._in_order: list[Room] | None = None
        """The rooms by name; None after one came, went or was renamed."""
        self._fleet_changed = False
        """The fleet's line may have got a place."""
        self._clusters_changed: set[ClusterKey] = set()
        """Clusters whose own line may have got a place."""
        self._due = FOREVER
        """Monotonic time at which one that waits for a time may start."""

    # --- events ---

    def settle(self, instructions: Sequence[Instruction], now: Now) -> list[Instruction]:
        """Give back what ended, fill what is free, and return what remains to be done."""
        done: list[Instruction] = []
        for instruction in instructions:
            if isinstance(instruction, Free):
                self._free(instruction.job, instruction.attempt)
            else:
                done.append(instruction)
        return [*done, *self._fill(now)]

    def submit(self, job: Job, actor: str, now: Now) -> list[Instruction]:
        """Take a new job, and make its cluster when it is missing; the caller has checked both."""
        made: list[Instruction] = []
        if job.cluster:
            cluster = self.clusters.get(job.workspace, job.cluster)
            if cluster is None:
                cluster = self._new_cluster(job)
                made.append(NoteCluster(cluster, "created", actor=actor, data={"num_nodes": cluster.num_nodes}))
            made.append(SaveCluster(cluster))
        submitted = self.jobs.submit(job, actor)
        self._touch(job)
        return self.settle([*made, *submitted], now)

    def withdraw(self, job: Job, now: Now) -> list[Instruction]:
        """Undo a submit that never reached the disk; the rest goes on as if it had not been."""
        withdrawn = self.jobs.withdraw(job)
        cluster = self.clusters.get(job.workspace, job.cluster)
        if cluster is not None and cluster.order == job.order and not self.jobs_in(cluster):
            self._drop(cluster)
        return self.settle(withdrawn, now)

    def down(self, cluster: Cluster, actor: str, now: Now) -> list[Instruction]:
        """Cancel the cluster's jobs; its hold goes back with the last of them."""
        if cluster.state is ClusterState.DOWN:
            return self.settle([], now)
        cluster.step(ClusterState.DOWN)
        cancelled: list[Instruction] = [SaveCluster(cluster), NoteCluster(cluster, "down_asked", actor=actor)]
        for job in self.jobs_in(cluster):
            cancelled += self.jobs.cancel(job, actor, f"cluster {cluster.name} was taken down", now)
        return self.settle(cancelled, now)

    def tick(self, now: Now) -> list[Instruction]:
        """Look again at those whose time has come, and fill what nodes that came or went have changed."""
        if now.mono >= self._due:
            self._due = FOREVER
            self._fleet_changed = True
            self._clusters_changed.update(self.clusters.clusters)
        if self._fleet_changed or self._clusters_changed:
            return self.settle([], now)
        return []

    # --- nodes ---

    def room(self, node_id: str, name: str) -> Room:
        """Find or make the room of a node."""
        room = self.rooms.get(node_id)
        if room is None or room.name != name:
            self._in_order = None
            room = self.rooms.setdefault(node_id, Room(node_id, name))
            room.name = name
        return room

    def set_inventory(self, node_id: str, total: Resources, gpus: Iterable[Gpu]) -> None:
        """The node told what it has."""
        self.rooms[node_id].set_total(total, gpus)
        self._node_changed(node_id)

    def set_open(self, node_id: str, *, is_open: bool) -> None:
        """Let new work come to the node, or not."""
        room = self.rooms[node_id]
        if room.open is not is_open:
            room.open = is_open
            self._node_changed(node_id)

    def node_lost(self, node_id: str, cause: str, now: Now) -> list[Instruction]:
        """The node is given up: its attempts end, and clusters look for a replacement."""
        instructions = self.jobs.node_lost(node_id, cause, now)
        for cluster in self.clusters.on_node(node_id):
            cluster.lose(node_id)
            self._give(node_id, cluster.holder.key)
            instructions += [SaveCluster(cluster), NoteCluster(cluster, "node_lost", cause=cause)]
        self._fleet_changed = True
        return self.settle(instructions, now)

    def forget_node(self, node_id: str) -> None:
        """The node was removed, and its work has ended."""
        self.rooms.pop(node_id, None)
        self._in_order = None

    # --- what the store had ---

    def restore_cluster(self, cluster: Cluster, holdings: Iterable[Holding]) -> None:
        """Take a cluster and what it holds."""
        self.clusters.add(cluster)
        held = list(holdings)
        for holding in held:
            self.room(holding.node_id, holding.node_id).take(cluster.holder, holding)
        if held:
            state = cluster.state
            cluster.state = ClusterState.PENDING
            cluster.grant(cluster.asks[0], held, self.rooms)
            cluster.state = state
        self._fleet_changed = True

    def restore_job(self, job: Job) -> None:
        """Take a job and what its live attempts hold."""
        self.jobs.restore(job)
        for attempt in job.live_attempts():
            self.room(attempt.node_id, attempt.node_id)
            self._room_of(job, attempt.node_id).take(_holder(job, attempt), attempt.holding)
        self._touch(job)

    # --- questions ---

    def jobs_in(self, cluster: Cluster) -> list[Job]:
        """The cluster's jobs that are not over."""
        return [
            job
            for job in self.jobs.jobs.values()
            if not job.over and job.cluster == cluster.name and job.workspace == cluster.workspace
        ]

    # --- inside ---

    def _new_cluster(self, job: Job) -> Cluster:
        cluster = Cluster(job.workspace, job.cluster, job.owner, job.num_nodes, job.asks, job.order, job.created_unix_s)
        self.clusters.add(cluster)
        self._fleet_changed = True
        return cluster

    def _drop(self, cluster: Cluster) -> None:
        self.clusters.remove(cluster)
        for node_id in cluster.rooms:
            self._give(node_id, cluster.holder.key)
        self._fleet_changed = True

    def _room_of(self, job: Job, node_id: str) -> Room:
        """The cluster's part of the node, or the node itself."""
        cluster = self.clusters.get(job.workspace, job.cluster) if job.cluster else None
        part = cluster.rooms.get(node_id) if cluster is not None else None
        return part if part is not None else self.rooms[node_id]

    def _free(self, job: Job, attempt: Attempt) -> None:
        if attempt.node_id in self.rooms:
            self._room_of(job, attempt.node_id).give(_holder(job, attempt).key)
        self._touch(job)

    def _give(self, node_id: str, key: str) -> None:
        if node_id in self.rooms:
            self.rooms[node_id].give(key)

    def _touch(self, job: Job) -> None:
        if job.cluster:
            self._clusters_changed.add((job.workspace, job.cluster))
        else:
            self._fleet_changed = True

    def _node_changed(self, node_id: str) -> None:
        self._fleet_changed = True
        self._clusters_changed.update(cluster.key for cluster in self.clusters.on_node(node_id))

    def _fill(self, now: Now) -> list[Instruction]:
        instructions: list[Instruction] = self._finish_downs()
        if self._fleet_changed:
            self._fleet_changed = False
            instructions += self._plan_fleet(now)
        while self._clusters_changed:
            cluster = self.clusters.clusters.get(self._clusters_changed.pop())
            if cluster is not None and cluster.state is not ClusterState.DOWN:
                instructions += self._plan_cluster(cluster, now)
        return instructions

    def _finish_downs(self) -> list[Instruction]:
        instructions: list[Instruction] = []
        for cluster in list(self.clusters.clusters.values()):
            if cluster.state is ClusterState.DOWN and not self.jobs_in(cluster):
                self._drop(cluster)
                instructions += [DropCluster(cluster), NoteCluster(cluster, "down")]
        return instructions

    def _plan_fleet(self, now: Now) -> list[Instruction]:
        """Clusters that miss nodes, and jobs without a cluster, in one line over all rooms."""
        those: dict[Order, Job | Cluster] = {cluster.order: cluster for cluster in self.clusters.waiting()}
        those |= {job.order: job for job in self.jobs.pending.values() if not job.cluster and self._is_due(job, now)}
        instructions: list[Instruction] = []
        for answer in plan(self._line(those, now), self._rooms_in_order(), self._engine):
            one = those[answer.waiting.order]
            if isinstance(answer, Line):
                one.detail = f"waits: {answer.sentence}"
            elif isinstance(one, Job):
                instructions += self._start(one, answer.placement)
            else:
                instructions += self._grant(one, answer)
        return instructions

    def _plan_cluster(self, cluster: Cluster, now: Now) -> list[Instruction]:
        """The cluster's own line over its own rooms."""
        for node_id, room in cluster.rooms.items():
            room.follow(self.rooms[node_id], cluster.holdings[node_id])
        rooms = sorted(cluster.rooms.values(), key=lambda room: room.name)
        key = cluster.key
        those = {
            job.order: job
            for job in self.jobs.pending.values()
            if (job.workspace, job.cluster) == key and self._is_due(job, now)
        }
        instructions: list[Instruction] = []
        for answer in plan(self._line(those, now), rooms, self._engine):
            job = those[answer.waiting.order]
            if isinstance(answer, Start):
                instructions += self._start(job, answer.placement)
            elif cluster.missing:
                job.detail = f"waits for cluster {cluster.name}, which {cluster.detail or 'has no place yet'}"
            else:
                job.detail = f"waits in cluster {cluster.name}: {answer.sentence}"
        return instructions

    def _line(self, those: Mapping[Order, Job | Cluster], now: Now) -> list[Waiting]:
        """The first of them, in order. The bound keeps a pass short however long the queue is."""
        return [self._waiting(those[order], now) for order in nsmallest(LINE_MAX, those)]

    def _is_due(self, job: Job, now: Now) -> bool:
        if job.not_before > now.mono:
            self._due = min(self._due, job.not_before)
            return False
        return True

    def _waiting(self, one: Job | Cluster, now: Now) -> Waiting:
        if isinstance(one, Cluster):
            return one.waiting()
        job = one
        job.avoid = {node: until for node, until in job.avoid.items() if until > now.mono}
        self._due = min([self._due, *job.avoid.values()])
        return Waiting(job.id, job.asks, job.num_nodes, job.order, frozenset(job.avoid))

    def _rooms_in_order(self) -> list[Room]:
        if self._in_order is None:
            self._in_order = sorted(self.rooms.values(), key=lambda room: (room.name, room.node_id))
        return self._in_order

    def _start(self, job: Job, placement: Placement) -> list[Instruction]:
        assigned = self.jobs.assign(job, placement, "placed")
        for attempt in job.attempts.values():
            self._room_of(job, attempt.node_id).take(_holder(job, attempt), attempt.holding)
        return assigned

    def _grant(self, cluster: Cluster, start: Start) -> list[Instruction]:
        for holding in start.placement.holdings:
            self.rooms[holding.node_id].take(cluster.holder, holding)
        cluster.grant(start.placement.ask, start.placement.holdings, self.rooms)
        self._clusters_changed.add(cluster.key)
        nodes = [holding.node_id for holding in start.placement.holdings]
        return [SaveCluster(cluster), NoteCluster(cluster, "held", data={"nodes": nodes})]


def _holder(job: Job, attempt: Attempt) -> Holder:
    return Holder(f"{job.id}/{attempt.index}/{attempt.fence}", job.order)
