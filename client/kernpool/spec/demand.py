"""What one node must give to one rank of a task: the flattened form that placement reads."""

from dataclasses import dataclass, field
from typing import final


@final
@dataclass(frozen=True, slots=True)
class Demand:
    """One alternative of a task's resources; 0 means: nothing is held for it."""

    cpus: float = 0
    cpus_at_least: bool = False
    """`4+`: 4 are held and more may be used. Otherwise the held amount is also the limit."""
    memory_gib: float = 0
    memory_at_least: bool = False
    """`16+`: as for the CPUs."""
    disk_gib: int = 0
    accelerators: dict[str, int] = field(default_factory=dict)
    """At most one kind, with its count per node."""

    @property
    def gpus(self) -> int:
        """Number of GPUs on each node."""
        return sum(self.accelerators.values())
