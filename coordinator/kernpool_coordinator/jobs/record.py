"""What the coordinator knows of one job and of the attempts of its ranks."""

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import final

from kernpool_coordinator.jobs.states import JOB_STEPS, OVER, AttemptPhase, JobState
from kernpool_coordinator.placement import Ask, Holding
from kernpool_coordinator.placement.room import Order
from kernpool_mesh.reasons import EndReason

HISTORY_MAX = 32


class IllegalStepError(Exception):
    """A step that the table of states does not have: a fault of ours, told with the history."""


class Outcome(StrEnum):
    """What becomes of a job once all ranks of this try have ended."""

    FAIL = "fail"
    CANCEL = "cancel"
    RETRY = "retry"


@final
@dataclass(frozen=True, slots=True)
class Verdict:
    """A decided end, of the job or of this try; the first one stands."""

    outcome: Outcome
    reason: EndReason
    exit_code: int | None
    detail: str
    delay_s: float = 0.0
    """RETRY: before the next try."""


@final
@dataclass(slots=True)
class Attempt:
    """One attempt of one rank."""

    index: int
    """Rank, from 0."""
    fence: int
    node_id: str
    holding: Holding
    phase: AttemptPhase = AttemptPhase.ASSIGNED
    sent: bool = False
    """StartAttempt may have reached the node; true also for all that the store gave back."""
    sends: int = 0
    """StartAttempts sent without an answer."""
    stopping: EndReason | None = None
    """Not None: its node was, or will be, told to end it."""
    reason: EndReason | None = None
    """Set when ENDED."""
    exit_code: int | None = None
    detail: str = ""
    started_unix_s: float | None = None
    ended_unix_s: float | None = None

    @property
    def live(self) -> bool:
        """Whether it may run, now or later."""
        return self.phase is not AttemptPhase.ENDED

    @property
    def good(self) -> bool:
        """Whether it exited 0 by itself."""
        return self.reason is EndReason.EXITED and self.exit_code == 0


@final
@dataclass(slots=True, eq=False)
class Job:
    """One job."""

    number: int
    workspace: str
    owner: str
    name: str
    cluster: str
    """Name of its cluster in its workspace; empty: none."""
    num_nodes: int
    priority: int
    asks: tuple[Ask, ...]
    """Alternatives of what each rank needs, best first."""
    task: str
    """The task document as JSON, without secrets."""
    created_unix_s: float
    secrets: bytes | None = None
    """Sealed."""
    error_tries: int = 0
    """Further tries that the task allows after a bad exit (job_recovery.max_restarts_on_errors)."""
    recover_codes: frozenset[int] = frozenset()
    """Exit codes after which the task wants another try, uncounted."""
    ask: Ask | None = None
    """The alternative that the newest try was placed with."""
    state: JobState = JobState.PENDING
    fence: int = 0
    """Of the newest try; grows with each, never reused."""
    fence_floor: int = 0
    """The next try's fence is above this one too: a node knows of tries that our store has lost."""
    attempts: dict[int, Attempt] = field(default_factory=dict)
    """Of the newest try, by rank; empty before the first."""
    verdict: Verdict | None = None
    """Not None in CANCELLING, and kept in a final state."""
    restarts: int = 0
    """Tries after the first."""
    failures: int = 0
    """Failures that counted against a retry rule."""
    not_before: float = 0.0
    """Monotonic time of the next try."""
    avoid: dict[str, float] = field(default_factory=dict)
    """Node -> monotonic time until which it is not tried again."""
    reason: EndReason | None = None
    exit_code: int | None = None
    detail: str = ""
    """Why it waits, or how it ended."""
    adopted: bool = False
    """Its record was missing here and was made from what a node told."""
    durable: bool = False
    """It is on disk: callers may see it."""
    told_over: bool = False
    """Its end is on disk: those that wait for it may know."""
    started_unix_s: float | None = None
    ended_unix_s: float | None = None
    history: deque[str] = field(default_factory=lambda: deque(maxlen=HISTORY_MAX))
    """Steps with their cause, newest last."""

    @property
    def id(self) -> str:
        """Its public id."""
        return f"j-{self.number}"

    @property
    def over(self) -> bool:
        """Whether it is in a final state."""
        return self.state in OVER

    @property
    def order(self) -> Order:
        """Its place in the line."""
        return (-self.priority, self.number)

    def live_attempts(self) -> list[Attempt]:
        """Attempts that may run."""
        return [attempt for attempt in self.attempts.values() if attempt.live]

    def step(self, state: JobState, cause: str) -> None:
        """Go to a state; nothing when it is there already. Raises IllegalStepError with the history."""
        if state is self.state:
            return
        if state not in JOB_STEPS[self.state]:
            raise IllegalStepError(
                f"job {self.id}: {self.state} -> {state} ({cause}) is no step; before: {'; '.join(self.history)}"
            )
        self.history.append(f"{self.state} -> {state} ({cause})")
        self.state = state


def job_number(job_id: str) -> int | None:
    """Read `j-17`; None for anything else."""
    digits = job_id[2:]
    return int(digits) if job_id.startswith("j-") and digits.isascii() and digits.isdecimal() else None
