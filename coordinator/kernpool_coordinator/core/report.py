"""The whole at a glance: ServerInfo, StatusBody and the numbers of /metrics."""

from typing import Any

from kernpool_coordinator.core.config import CoreConfig
from kernpool_coordinator.core.rooms import Rooms
from kernpool_coordinator.tokens.actor import Actor

Json = dict[str, Any]
CLUSTERS_SHOWN = 1_000


def info(config: CoreConfig, started_unix_s: float) -> Json:
    """Give a ServerInfo."""
    return {
        "version": config.version,
        "cluster_id": config.cluster_id,
        "started_unix_s": started_unix_s,
        "ca_pin": config.ca_pin,
        "node_url": config.node_url,
    }


def status(rooms: Rooms, actor: Actor, server: Json) -> Json:
    """Give a StatusBody."""
    nodes = rooms.nodes.all_bodies()
    return {
        "server": server,
        "nodes": nodes,
        "clusters": rooms.clusters.page(actor, CLUSTERS_SHOWN, "").items,
        "jobs": rooms.jobs.counts(),
        "sandboxes": {
            "running": rooms.sandboxes.book.alive,
            "parked": sum(node["sandboxes_parked"] for node in nodes if node["state"] == "ready"),
        },
    }


def statistics(rooms: Rooms) -> dict[str, float]:
    """Give the numbers, by metric name without prefix."""
    writer = rooms.store.statistics()
    numbers: dict[str, float] = {
        "nodes_linked": rooms.links.linked,
        "sandboxes_alive": rooms.sandboxes.book.alive,
        "jobs_pending": len(rooms.scheduler.jobs.pending),
        "store_commits_total": writer.commits,
        "store_rows_total": writer.rows,
        "store_failures_total": writer.failures,
        "store_rows_waiting": writer.waiting,
        "store_rows_behind": rooms.commits.behind,
        "health_frozen": float(rooms.health.frozen),
    }
    numbers |= {f"jobs_{state}": count for state, count in rooms.jobs.counts().items()}
    return numbers
