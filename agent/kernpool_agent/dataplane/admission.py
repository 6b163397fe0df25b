"""How many requests run at once, in all and per object: beyond that a request is refused at once, never queued."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from kernpool_agent.dataplane.problems import busy


@final
@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """Bounds of what the data plane does at once."""

    requests_max: int = 4096
    """Requests in flight on the node, followers of logs and open ports included."""
    per_object_max: int = 240
    """Requests in flight on one sandbox or job; a sandbox's PID 1 keeps 256 commands, running or just ended."""


@final
class Admission:
    """Counts requests in flight; no I/O."""

    __slots__ = ("_limits", "_of_object", "_total")

    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        self._total = 0
        self._of_object: Counter[str] = Counter()

    @property
    def in_flight(self) -> int:
        """How many requests run now."""
        return self._total

    @contextlib.contextmanager
    def admitted(self, object_: str) -> Iterator[None]:
        """Hold one place while a request runs; raises ProblemError (503) when there is none."""
        if self._total >= self._limits.requests_max:
            raise busy(f"this node serves {self._total} requests at once and takes no more")
        if self._of_object[object_] >= self._limits.per_object_max:
            raise busy(f"{object_} has {self._limits.per_object_max} requests in flight and takes no more")
        self._total += 1
        self._of_object[object_] += 1
        try:
            yield
        finally:
            self._total -= 1
            self._of_object[object_] -= 1
            if not self._of_object[object_]:
                del self._of_object[object_]
