"""The states of jobs and attempts, one sentence each, and every step that is allowed between them."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from kernpool_mesh.messages import AttemptState


class JobState(StrEnum):
    """Where a job stands."""

    PENDING = "pending"
    """It waits for its place, or for the time of its next try."""
    STARTING = "starting"
    """It has its place; not all of its ranks have begun."""
    SETTING_UP = "setting_up"
    """All ranks have begun and at least one runs its `setup`."""
    RUNNING = "running"
    """Every rank runs its `run`, or has ended well."""
    CANCELLING = "cancelling"
    """Its end, or the end of this try, is decided and its processes are being ended."""
    SUCCEEDED = "succeeded"
    """Every rank exited 0."""
    FAILED = "failed"
    """It ended otherwise; the reason says how."""
    CANCELLED = "cancelled"
    """It was ended because someone asked."""


class AttemptPhase(StrEnum):
    """Where one attempt of one rank stands, as the coordinator knows it."""

    ASSIGNED = "assigned"
    """It has a node and is durable here; the node has not said yet that it took it."""
    ACCEPTED = "accepted"
    """The node has it in its journal."""
    SETTING_UP = "setting_up"
    """Its `setup` runs."""
    RUNNING = "running"
    """Its `run` runs."""
    ENDED = "ended"
    """Over; the reason is known."""


OVER: Final = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})

# A fast job may end before we hear of its beginning, so every active state leads to every final one.
_ENDS: Final = frozenset({JobState.PENDING, JobState.CANCELLING, *OVER})

JOB_STEPS: Final[Mapping[JobState, frozenset[JobState]]] = {
    JobState.PENDING: frozenset({JobState.STARTING, JobState.CANCELLED}),
    JobState.STARTING: frozenset({JobState.SETTING_UP, JobState.RUNNING}) | _ENDS,
    JobState.SETTING_UP: frozenset({JobState.RUNNING}) | _ENDS,
    JobState.RUNNING: _ENDS,
    # SUCCEEDED: it exited 0 by itself before our signal came. PENDING: the next try.
    JobState.CANCELLING: frozenset({JobState.PENDING, *OVER}),
    JobState.SUCCEEDED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
}

PROGRESS: Final[Mapping[AttemptPhase, int]] = {phase: place for place, phase in enumerate(AttemptPhase)}
"""An attempt only goes forward: a report of less progress is late or a copy, and changes nothing."""

PHASE_OF_REPORT: Final[Mapping[AttemptState, AttemptPhase]] = {
    AttemptState.ACCEPTED: AttemptPhase.ACCEPTED,
    AttemptState.SETTING_UP: AttemptPhase.SETTING_UP,
    AttemptState.RUNNING: AttemptPhase.RUNNING,
    AttemptState.ENDED: AttemptPhase.ENDED,
}

JOB_STATE_OF_PROGRESS: Final[Mapping[AttemptPhase, JobState]] = {
    AttemptPhase.ASSIGNED: JobState.STARTING,
    AttemptPhase.ACCEPTED: JobState.STARTING,
    AttemptPhase.SETTING_UP: JobState.SETTING_UP,
    AttemptPhase.RUNNING: JobState.RUNNING,
    AttemptPhase.ENDED: JobState.RUNNING,
}
