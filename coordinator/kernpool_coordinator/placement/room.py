"""A room: one node (or one node's part of a cluster's hold) and who holds what in it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import final

from kernpool_coordinator.placement.amounts import Amounts, Ask, Holding, Shortage, fits
from kernpool_mesh.messages import Gpu, Resources

Order = tuple[int, int]
"""(-priority, number): smaller goes first in a queue."""


@final
@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds something in a room."""

    key: str
    """`job/j-3/0` or `cluster/default/pretrain/1`; unique in its room."""
    order: Order
    """Its place in the queue it came from."""
    lasting: bool = False
    """True for a cluster's hold: it ends only when somebody takes the cluster down, so nobody waits for it."""


@final
@dataclass(slots=True)
class Room:
    """The ledger of one node or of one node's part of a hold."""

    node_id: str
    name: str
    """Host name, for sentences."""
    total: Amounts = field(default_factory=Amounts)
    models: Mapping[int, str] = field(default_factory=dict)
    """Index -> casefolded model of each healthy GPU that belongs to this room."""
    open: bool = False
    """New work may come."""
    holders: dict[str, tuple[Holder, Holding]] = field(default_factory=dict)
    """By the holder's key. Sums are kept beside it, so that a question costs no walk."""
    _free: Amounts | None = field(default=None, init=False)
    """Cache of free(); None after a change."""

    def set_total(self, total: Resources, gpus: Iterable[Gpu]) -> None:
        """Take the node's inventory; what is held stays held, also when it is more than there is now."""
        self.models = {gpu.index: gpu.name.casefold() for gpu in gpus if gpu.healthy}
        self.total = Amounts(total.cpu_millis, total.memory_mib, total.disk_mib, _counted(self.models.values()))
        self._free = None

    def take(self, holder: Holder, holding: Holding) -> None:
        """Note a holding without asking whether it fits; one holder holds once."""
        self.holders[holder.key] = (holder, holding)
        self._free = None

    def give(self, key: str) -> bool:
        """Forget a holding; False when there is none (an end may be told twice)."""
        self._free = None
        return self.holders.pop(key, None) is not None

    def free(self) -> Amounts:
        """What may still be taken; may be negative after a loss."""
        if self._free is None:
            self._free = self.total.minus((holding for _, holding in self.holders.values()), self.models)
        return self._free

    def free_later(self, order: Order, besides: Holding | None = None) -> Amounts:
        """What will be free for a waiting one of this order once all that went before it has ended.

        Those that overtook it, lasting holds, and `besides` (one that would like to overtake it) still count.
        """
        holdings = [held for who, held in self.holders.values() if who.lasting or who.order > order]
        if besides is not None and besides.node_id == self.node_id:
            holdings.append(besides)
        return self.total.minus(holdings, self.models)

    def shortage(self, ask: Ask) -> Shortage | None:
        """Say whether the ask fits now."""
        return fits(self.free(), ask)

    def holding_for(self, ask: Ask) -> Holding:
        """Choose what an ask that fits will hold: the GPUs with the lowest free indices."""
        taken = {index for _, held in self.holders.values() for index in held.gpu_indices}
        model = ask.gpu_model.casefold()
        free = [index for index in sorted(self.models) if self.models[index] == model and index not in taken]
        assert len(free) >= ask.gpus, f"{self.name}: {ask.gpus} GPUs asked, {free} free"
        return Holding(self.node_id, ask.cpu_millis, ask.memory_mib, ask.disk_mib, tuple(free[: ask.gpus]))

    def part(self, holding: Holding) -> "Room":
        """Make the room of a cluster's hold on this node."""
        part = Room(self.node_id, self.name)
        part.follow(self, holding)
        return part

    def follow(self, node: "Room", holding: Holding) -> None:
        """Bring a part in line with its node: a GPU that broke there is gone here, a node that is away is closed."""
        self.name, self.open = node.name, node.open
        self.models = {index: node.models[index] for index in holding.gpu_indices if index in node.models}
        gpus = _counted(self.models.values())
        self.total = Amounts(holding.cpu_millis, holding.memory_mib, holding.disk_mib, gpus)
        self._free = None


def _counted(models: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for model in models:
        counts[model] = counts.get(model, 0) + 1
    return counts
