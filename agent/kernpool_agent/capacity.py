"""What is free on this node: its total minus what running attempts and sandboxes were promised.

One synchronous ledger. Whoever wants to run something takes first; whoever saw it end gives back. What is adopted
after a restart is counted without being asked whether it fits: it runs already.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from kernpool_agent.errors import RefusedError
from kernpool_mesh.messages import Limits, Resources


@final
@dataclass(frozen=True, slots=True)
class Need:
    """What one attempt or sandbox is counted with."""

    cpu_millis: int = 0
    memory_mib: int = 0
    disk_mib: int = 0
    gpu_indices: tuple[int, ...] = ()


NOTHING = Need()


@final
class Capacity:
    """The ledger. Amounts are never negative in `free`, also when more was adopted than there is."""

    def __init__(self, total: Resources, gpu_indices: Iterable[int] = ()) -> None:
        self._total = total
        self._gpus = frozenset(gpu_indices)
        """Indices that exist here."""
        self._taken: dict[object, Need] = {}
        """Who holds what."""
        self._gpu_holders: dict[int, object] = {}
        """GPU index -> who holds it; a GPU has one holder."""
        self._cpu_millis = self._memory_mib = self._disk_mib = 0
        """Sums over `_taken`, kept so that a take costs no walk."""

    def set_total(self, total: Resources, gpu_indices: Iterable[int]) -> None:
        """The node's total changed (a GPU fell off the bus, memory was hot-plugged)."""
        self._total = total
        self._gpus = frozenset(gpu_indices)

    @property
    def total(self) -> Resources:
        """What there is when nothing runs."""
        return self._total

    def take(self, holder: object, need: Need) -> None:
        """Count `need` for `holder`; raises RefusedError(no_capacity) naming the first thing that is short."""
        short = self._shortage(need)
        if short:
            raise RefusedError("no_capacity", short)
        self.adopt(holder, need)

    def adopt(self, holder: object, need: Need) -> None:
        """Count what runs already; taking twice for one holder replaces the first."""
        self.give_back(holder)
        self._taken[holder] = need
        self._add(need, 1)
        for index in need.gpu_indices:
            self._gpu_holders.setdefault(index, holder)

    def give_back(self, holder: object) -> None:
        """Stop counting for `holder`; an unknown one changes nothing (an end may be told twice)."""
        need = self._taken.pop(holder, None)
        if need is None:
            return
        self._add(need, -1)
        for index in need.gpu_indices:
            if self._gpu_holders.get(index) == holder:
                del self._gpu_holders[index]

    def free(self) -> Resources:
        """Return what may still be promised."""
        return Resources(
            cpu_millis=max(0, self._total.cpu_millis - self._cpu_millis),
            memory_mib=max(0, self._total.memory_mib - self._memory_mib),
            disk_mib=max(0, self._total.disk_mib - self._disk_mib),
            gpus=len(self._gpus - self._gpu_holders.keys()),
        )

    def _add(self, need: Need, sign: int) -> None:
        self._cpu_millis += sign * need.cpu_millis
        self._memory_mib += sign * need.memory_mib
        self._disk_mib += sign * need.disk_mib

    def _shortage(self, need: Need) -> str:
        free = self.free()
        for name, unit, wanted, there in (
            ("cpu", "m", need.cpu_millis, free.cpu_millis),
            ("memory", " MiB", need.memory_mib, free.memory_mib),
            ("disk", " MiB", need.disk_mib, free.disk_mib),
        ):
            if wanted > there:
                return f"{name}: {wanted}{unit} wanted, {there}{unit} free on this node"
        for index in need.gpu_indices:
            if index not in self._gpus:
                return f"GPU {index} is not on this node (it has {sorted(self._gpus) or 'none'})"
            if index in self._gpu_holders:
                return f"GPU {index} is held by {self._gpu_holders[index]}"
        return ""

    def __repr__(self) -> str:
        return f"<Capacity {len(self._taken)} holders, free {self.free()}>"


def attempt_need(limits: Limits, gpu_indices: Iterable[int]) -> Need:
    """Return what a job's rank counts with: its limits as they are (0: it asked for nothing in particular)."""
    return Need(limits.cpu_millis, limits.memory_mib, limits.disk_mib, tuple(gpu_indices))


def sandbox_need(limits: Limits, *, memory_mib_default: int, cpu_millis_default: int) -> Need:
    """Return what a sandbox counts with: its limits, or a small default where it has none.

    Its disk is a tmpfs whose pages its memory limit covers, so disk is not counted beside it.
    """
    return Need(limits.cpu_millis or cpu_millis_default, limits.memory_mib or memory_mib_default)
