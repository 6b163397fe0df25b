"""Clusters as the API asks for them: list, show, take down."""

from typing import Any, final

from kernpool_coordinator.clusters.book import Cluster, ClusterState
from kernpool_coordinator.core.clock import Clock
from kernpool_coordinator.core.shapes import Listing
from kernpool_coordinator.errors import NotFoundError
from kernpool_coordinator.jobs.bodies import resources_body
from kernpool_coordinator.jobs.desk import JobDesk
from kernpool_coordinator.jobs.states import JobState
from kernpool_coordinator.tokens.actor import Actor

DOWN_WAIT_S = 5.0
"""For the down to be on disk; afterwards it is answered anyway."""


@final
class ClusterService:
    """The clusters' side of the control plane."""

    def __init__(self, desk: JobDesk, clock: Clock) -> None:
        self._desk = desk
        self._scheduler = desk.scheduler
        self._clock = clock

    def body(self, cluster: Cluster) -> dict[str, Any]:
        """Give a ClusterBody."""
        jobs = self._scheduler.jobs_in(cluster)
        waiting = sum(job.state is JobState.PENDING for job in jobs)
        return {
            "name": cluster.name,
            "workspace": cluster.workspace,
            "owner": cluster.owner,
            "state": str(cluster.state),
            "nodes": sorted(cluster.rooms),
            "num_nodes": cluster.num_nodes,
            "resources": resources_body(cluster.asks[0]),
            "jobs_running": len(jobs) - waiting,
            "jobs_waiting": waiting,
            "created_unix_s": cluster.created_unix_s,
        }

    def page(self, actor: Actor, limit: int, after: str) -> Listing:
        """ClusterBody each, by workspace and name."""
        seen = [
            one
            for one in self._scheduler.clusters.clusters.values()
            if actor.is_admin or one.workspace == actor.workspace
        ]
        later = sorted((one for one in seen if _cursor(one) > after), key=_cursor)
        items = [self.body(one) for one in later[:limit]]
        return Listing(items, _cursor(later[limit - 1]) if len(later) > limit else "")

    def show(self, actor: Actor, name: str) -> dict[str, Any]:
        """ClusterBody; raises NotFoundError."""
        return self.body(self._find(actor, name))

    async def down(self, actor: Actor, name: str) -> dict[str, Any]:
        """Cancel its jobs and give its hold back; ClusterBody with the state `down`."""
        cluster = self._find(actor, name)
        instructions = self._scheduler.down(cluster, actor.name, self._clock.now())
        body = self.body(cluster) | {"state": str(ClusterState.DOWN)}
        await self._desk.settle_now(instructions, DOWN_WAIT_S)
        return body

    def _find(self, actor: Actor, name: str) -> Cluster:
        cluster = self._scheduler.clusters.get(actor.workspace, name)
        if cluster is None:
            raise NotFoundError(f"There is no cluster {name}.", hint="kernpool status")
        return cluster


def _cursor(cluster: Cluster) -> str:
    return f"{cluster.workspace}/{cluster.name}"
