"""What is free on this node: its total minus what running attempts and sandboxes were promised.

One synchronous ledger. Whoever wants to run something takes first; whoever saw it end gives back. What is adopted
after a restart is counted without being asked whether it fits: it runs already.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import final

from kernpool_agent.errors import RefusedError
from kernpool_mesh.fits import shortage
from kernpool_mesh.messages import Limits, Resources


@final
@dataclass(frozen=True, slots=True)
class Need:
    """What one attempt or sandbox is counted with."""

    amounts: Resources = field(default_factory=Resources)
    gpu_indices: tuple[int, ...] = ()
    """Which GPUs it holds; `amounts.gpus` is their number."""


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
        self._sum = Resources()
        """Sums over `_taken`, kept so that a take costs no walk; its `gpus` is not used."""

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
        short = self._gpu_shortage(need) or shortage(self.free(), need.amounts)
        if short:
            raise RefusedError("no_capacity", f"does not fit on this node: {short}")
        self.adopt(holder, need)

    def adopt(self, holder: object, need: Need) -> None:
        """Count what runs already; taking twice for one holder replaces the first."""
        self.give_back(holder)
        self._taken[holder] = need
        self._add(need.amounts, 1)
        for index in need.gpu_indices:
            self._gpu_holders.setdefault(index, holder)

    def give_back(self, holder: object) -> None:
        """Stop counting for `holder`; an unknown one changes nothing (an end may be told twice)."""
        need = self._taken.pop(holder, None)
        if need is None:
            return
        self._add(need.amounts, -1)
        for index in need.gpu_indices:
            if self._gpu_holders.get(index) == holder:
                del self._gpu_holders[index]

    def free(self) -> Resources:
        """Return what may still be promised."""
        total, taken = self._total, self._sum
        return Resources(
            cpu_millis=max(0, total.cpu_millis - taken.cpu_millis),
            memory_mib=max(0, total.memory_mib - taken.memory_mib),
            disk_mib=max(0, total.disk_mib - taken.disk_mib),
            gpus=len(self._gpus - self._gpu_holders.keys()),
        )

    def _add(self, amounts: Resources, sign: int) -> None:
        self._sum.cpu_millis += sign * amounts.cpu_millis
        self._sum.memory_mib += sign * amounts.memory_mib
        self._sum.disk_mib += sign * amounts.disk_mib

    def _gpu_shortage(self, need: Need) -> str:
        for index in need.gpu_indices:
            if index not in self._gpus:
                return f"GPU {index} is not here (there are: {sorted(self._gpus) or 'none'})"
            if index in self._gpu_holders:
                return f"GPU {index} is held by {self._gpu_holders[index]}"
        return ""

    def __repr__(self) -> str:
        return f"<Capacity {len(self._taken)} holders, free {self.free()}>"


def attempt_need(limits: Limits, gpu_indices: Iterable[int]) -> Need:
    """Return what a job's rank counts with: its limits as they are (0: it asked for nothing in particular)."""
    gpus = tuple(gpu_indices)
    return Need(Resources(limits.cpu_millis, limits.memory_mib, limits.disk_mib, len(gpus)), gpus)


def sandbox_need(limits: Limits, *, cpu_millis_default: int, memory_mib_default: int) -> Need:
    """Return what a sandbox counts with: its limits, or a small default where it has none.

    Its disk is a tmpfs whose pages its memory limit covers, so disk is not counted beside it.
    """
    return Need(Resources(limits.cpu_millis or cpu_millis_default, limits.memory_mib or memory_mib_default))
