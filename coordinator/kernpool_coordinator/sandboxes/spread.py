"""How many sandboxes of a create go to which node."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from kernpool_coordinator.errors import NoCapacityError
from kernpool_mesh.messages import Limits, Resources

MEMORY_MIB_DEFAULT: Final = 4
"""What one without a memory limit is reckoned with: an idle one takes less than one."""


@final
@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that may take some."""

    node_id: str
    name: str
    total: Resources
    free: Resources
    """What its agent says is free."""


def spread(count: int, limits: Limits, candidates: Sequence[Candidate]) -> list[tuple[str, int]]:
    """Split by CPUs, no node above what it has room for. Raises NoCapacityError saying what is short."""
    rooms = [(node, room) for node in candidates if (room := room_for(limits, node)) > 0]
    if sum(room for _, room in rooms) < count:
        raise NoCapacityError(_too_many(count, candidates, limits), hint="kernpool node ls")
    return _shares(count, rooms)


def room_for(limits: Limits, node: Candidate) -> int:
    """How many more it can take: limits are promises, so they must be there."""
    free = node.free
    room = free.memory_mib // (limits.memory_mib or MEMORY_MIB_DEFAULT)
    if limits.cpu_millis > node.total.cpu_millis:
        return 0
    # CPU limits are shares of time, not parts of the machine: many small ones may sleep side by side.
    if limits.disk_mib:
        room = min(room, free.disk_mib // limits.disk_mib)
    return max(0, room)


def _shares(count: int, rooms: Sequence[tuple[Candidate, int]]) -> list[tuple[str, int]]:
    left = {node.node_id: room for node, room in rooms}
    given = dict.fromkeys(left, 0)
    weights = {node.node_id: max(1, node.total.cpu_millis) for node, _ in rooms}
    while count:
        open_nodes = [node for node in left if left[node] > 0]
        weight = sum(weights[node] for node in open_nodes)
        before = count
        for node in open_nodes:
            share = min(left[node], before * weights[node] // weight, count)
            given[node] += share
            left[node] -= share
            count -= share
        if count == before:  # too few for shares: one each, the largest first
            for node in sorted(open_nodes, key=lambda one: -weights[one])[:count]:
                given[node] += 1
                left[node] -= 1
                count -= 1
    return [(node, number) for node, number in given.items() if number]


def _too_many(count: int, candidates: Sequence[Candidate], limits: Limits) -> str:
    if not candidates:
        return "no ready node can hold sandboxes"
    wants = f"{count} sandboxes" + (f" of {limits.memory_mib} MiB" if limits.memory_mib else "")
    rooms = ", ".join(f"{node.name}: {room_for(limits, node)}" for node in candidates[:3])
    more = f" and {len(candidates) - 3} more" if len(candidates) > 3 else ""
    return f"there is no room for {wants} (room on {rooms}{more})"
