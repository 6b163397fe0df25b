"""Nodes as the HTTP API shows them: dicts shaped like NodeBody."""

from typing import Any

from kernpool_coordinator.nodes.record import Node, gpu_row
from kernpool_coordinator.placement import Amounts, Room


def node_body(
    node: Node, state: str, room: Room | None, last_seen_s: float | None, jobs_running: int
) -> dict[str, Any]:
    """Give a NodeBody; `free` is what placement may still hand out."""
    inventory, heartbeat = node.inventory, node.heartbeat
    return {
        "id": node.id,
        "name": node.name,
        "pool": node.pool,
        "state": state,
        "total": _amounts(room.total if room else Amounts()),
        "free": _amounts(room.free() if room else Amounts()),
        "gpus": [gpu_row(gpu) for gpu in inventory.gpus] if inventory else [],
        "addresses": inventory.addresses if inventory else [],
        "isolation": inventory.isolation if inventory else [],
        "isolation_problems": inventory.isolation_problems if inventory else [],
        "facts": inventory.facts if inventory else {},
        "labels": inventory.labels if inventory else {},
        "agent_version": node.agent_version,
        "incarnation": node.incarnation,
        "jobs_running": jobs_running,
        "sandboxes_running": heartbeat.sandboxes_running if heartbeat else 0,
        "sandboxes_parked": heartbeat.sandboxes_parked if heartbeat else 0,
        "last_seen_s": last_seen_s,
        "joined_unix_s": node.joined_unix_s,
        "certificate_expires_unix_s": node.certificate_expires_unix_s,
    }


def _amounts(amounts: Amounts) -> dict[str, Any]:
    return {
        "cpus": max(0, amounts.cpu_millis) / 1000,
        "memory_mib": max(0, amounts.memory_mib),
        "disk_mib": max(0, amounts.disk_mib),
        "gpus": max(0, sum(amounts.gpus.values())),
    }
