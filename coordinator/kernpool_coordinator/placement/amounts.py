"""Amounts of resources: what is there, what one rank asks for, what it holds; and the one `fits()` between them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final

from kernpool.spec import Demand
from kernpool_mesh import fits as mesh_fits
from kernpool_mesh.messages import Limits, Resources

MIB_PER_GIB: Final = 1024
MILLIS_PER_CPU: Final = 1000


@final
@dataclass(frozen=True, slots=True)
class Ask:
    """What one rank of a job, or one node of a cluster, needs. 0 means: nothing is held for it."""

    cpu_millis: int = 0
    memory_mib: int = 0
    disk_mib: int = 0
    gpu_model: str = ""
    """Short name as in the node's inventory, compared without case; empty: no GPU."""
    gpus: int = 0
    cpu_limited: bool = False
    """The held amount is also the limit (`4`, not `4+`)."""
    memory_limited: bool = False

    @classmethod
    def from_demand(cls, demand: Demand) -> "Ask":
        """Flatten one alternative of a task; it has at most one kind of accelerator."""
        model, gpus = next(iter(demand.accelerators.items()), ("", 0))
        return cls(
            cpu_millis=round(demand.cpus * MILLIS_PER_CPU),
            memory_mib=round(demand.memory_gib * MIB_PER_GIB),
            disk_mib=demand.disk_gib * MIB_PER_GIB,
            gpu_model=model,
            gpus=gpus,
            cpu_limited=demand.cpus > 0 and not demand.cpus_at_least,
            memory_limited=demand.memory_gib > 0 and not demand.memory_at_least,
        )

    def limits(self) -> Limits:
        """What the node enforces; 0 where more may be used than is held."""
        return Limits(
            cpu_millis=self.cpu_millis if self.cpu_limited else 0,
            memory_mib=self.memory_mib if self.memory_limited else 0,
            disk_mib=self.disk_mib,
        )

    def as_row(self) -> dict[str, Any]:
        """Give plain data for the store."""
        return {name: getattr(self, name) for name in self.__slots__}

    @property
    def is_anything(self) -> bool:
        """It names some amount; else any node does."""
        return bool(self.cpu_millis or self.memory_mib or self.disk_mib or self.gpus)

    def __str__(self) -> str:
        parts = [
            f"{self.cpu_millis / MILLIS_PER_CPU:g} CPUs" if self.cpu_millis else "",
            f"{self.memory_mib / MIB_PER_GIB:g} GiB of memory" if self.memory_mib else "",
            f"{self.disk_mib / MIB_PER_GIB:g} GiB of disk" if self.disk_mib else "",
            f"{self.gpus} x {self.gpu_model}" if self.gpus else "",
        ]
        return ", ".join(part for part in parts if part) or "nothing in particular"


@final
@dataclass(frozen=True, slots=True)
class Holding:
    """What one rank or one cluster node has on its node."""

    node_id: str
    cpu_millis: int = 0
    memory_mib: int = 0
    disk_mib: int = 0
    gpu_indices: tuple[int, ...] = ()

    def as_row(self) -> dict[str, Any]:
        """Give plain data for the store."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "Holding":
        """Read it back."""
        return cls(**{**row, "gpu_indices": tuple(row["gpu_indices"])})


@final
@dataclass(frozen=True, slots=True)
class Amounts:
    """What is there to be taken on one node."""

    cpu_millis: int = 0
    memory_mib: int = 0
    disk_mib: int = 0
    gpus: Mapping[str, int] = field(default_factory=dict)
    """Casefolded model -> number."""

    def minus(self, holdings: Iterable[Holding], models: Mapping[int, str]) -> "Amounts":
        """What is left when these are taken; `models` names the GPUs by index."""
        cpu, memory, disk, gpus = self.cpu_millis, self.memory_mib, self.disk_mib, dict(self.gpus)
        for held in holdings:
            cpu -= held.cpu_millis
            memory -= held.memory_mib
            disk -= held.disk_mib
            for index in held.gpu_indices:
                model = models.get(index)
                if model is not None:
                    gpus[model] = gpus.get(model, 0) - 1
        return Amounts(cpu, memory, disk, gpus)


@final
@dataclass(frozen=True, slots=True)
class Shortage:
    """The first thing that is not there in the amount asked."""

    what: str
    wanted: str
    there: str

    def __str__(self) -> str:
        return f"{self.wanted} {self.what} asked, {self.there} there"


def fits(there: Amounts, ask: Ask) -> Shortage | None:
    """Say whether the ask fits, or what is short.

    The comparison is `kernpool_mesh.fits`, which the node's agent asks too when it admits the work; here only the GPUs
    of the asked model count.
    """
    gpus = there.gpus.get(ask.gpu_model.casefold(), 0) if ask.gpus else 0
    free = Resources(there.cpu_millis, there.memory_mib, there.disk_mib, gpus)
    if mesh_fits.fits(free, Resources(ask.cpu_millis, ask.memory_mib, ask.disk_mib, ask.gpus)):
        return None
    return _first_shortage(free, ask)


def _first_shortage(free: Resources, ask: Ask) -> Shortage:
    """Name it as people do."""
    if ask.cpu_millis > free.cpu_millis:
        wanted, there = ask.cpu_millis / MILLIS_PER_CPU, max(0, free.cpu_millis) / MILLIS_PER_CPU
        return Shortage("CPUs", f"{wanted:g}", f"{there:g}")
    if ask.memory_mib > free.memory_mib:
        return Shortage("MiB of memory", str(ask.memory_mib), str(max(0, free.memory_mib)))
    if ask.disk_mib > free.disk_mib:
        return Shortage("MiB of disk", str(ask.disk_mib), str(max(0, free.disk_mib)))
    return Shortage(f"x {ask.gpu_model}", str(ask.gpus), str(max(0, free.gpus)))
