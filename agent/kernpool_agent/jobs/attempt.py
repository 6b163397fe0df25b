"""Where one attempt stands: a small state machine fed by the supervisor's record. docs/job-logs.md draws it.

ACCEPTED --> SETTING_UP --> RUNNING --> ENDED        (a task without setup goes from ACCEPTED to RUNNING; any
    `-------------`------------`----------^           state may end)
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, final

from kernpool_agent.errors import TransitionError
from kernpool_agent.jobs.record import End, status_of
from kernpool_agent.records import AttemptKey
from kernpool_mesh.messages import AttemptState, AttemptStatus
from kernpool_mesh.reasons import EndReason
from kernpool_sandbox.kpinit.job import JobClient
from kernpool_sandbox.kpinit.record import JobRecord

_NEXT: Final[Mapping[AttemptState, frozenset[AttemptState]]] = {
    AttemptState.ACCEPTED: frozenset({AttemptState.SETTING_UP, AttemptState.RUNNING, AttemptState.ENDED}),
    AttemptState.SETTING_UP: frozenset({AttemptState.RUNNING, AttemptState.ENDED}),
    AttemptState.RUNNING: frozenset({AttemptState.ENDED}),
    AttemptState.ENDED: frozenset(),
}


@final
@dataclass(frozen=True, slots=True)
class StopOrder:
    """Somebody asked for the end of an attempt."""

    reason: EndReason
    grace_s: float


@final
@dataclass(slots=True)
class Attempt:
    """One attempt on this node; no I/O."""

    key: AttemptKey
    name: str
    """Of its supervisor, directory and cgroup."""
    directory: Path
    """Where its record and log segments lie."""
    status: AttemptStatus = field(init=False)
    client: JobClient | None = None
    """The connection to its supervisor while it lives and answers."""
    stop: StopOrder | None = None
    """The order that its supervisor has not taken yet."""
    history: list[AttemptState] = field(default_factory=lambda: [AttemptState.ACCEPTED])

    def __post_init__(self) -> None:
        self.status = status_of(self.key, None, 0)

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self.status.state is AttemptState.ENDED

    def record_read(self, record: JobRecord) -> bool:
        """Take what the record says while it runs; True when its state changed."""
        return self._take(status_of(self.key, record, record.log_bytes))

    def concluded(self, record: JobRecord | None, end: End, log_bytes: int) -> bool:
        """Take its end; True unless it was known."""
        return self._take(status_of(self.key, record, log_bytes, end))

    def snapshot(self, log_bytes: int | None = None) -> AttemptStatus:
        """Copy the status, with the log's present length when it is given."""
        return replace(self.status, log_bytes=self.status.log_bytes if log_bytes is None else log_bytes)

    def _take(self, status: AttemptStatus) -> bool:
        if status.state is self.status.state:
            return False
        if status.state not in _NEXT[self.status.state]:
            raise TransitionError(
                f"{self.key}: {status.state} after {', '.join(self.history)} is no step an attempt can take"
            )
        self.history.append(status.state)
        self.status = status
        return True
