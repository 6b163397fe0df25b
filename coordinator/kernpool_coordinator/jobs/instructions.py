"""What the books of jobs and clusters ask their shell to do, in sequence: each order after the saves before it."""

from dataclasses import dataclass, field
from typing import Any, final

from kernpool_coordinator.clusters.book import Cluster
from kernpool_coordinator.jobs.record import Attempt, Job
from kernpool_mesh.reasons import EndReason


@final
@dataclass(frozen=True, slots=True)
class Save:
    """Write the job, and these attempts of it, to the store."""

    job: Job
    attempts: tuple[Attempt, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class Note:
    """Write an event about the job."""

    job: Job
    verb: str
    cause: str = ""
    actor: str = "system"
    data: dict[str, Any] = field(default_factory=dict)


@final
@dataclass(frozen=True, slots=True)
class Start:
    """Send StartAttempt to the attempt's node."""

    job: Job
    attempt: Attempt


@final
@dataclass(frozen=True, slots=True)
class Stop:
    """Send StopAttempt."""

    node_id: str
    job_id: str
    index: int
    fence: int
    reason: EndReason


@final
@dataclass(frozen=True, slots=True)
class Ack:
    """Tell the node that this end is on disk here."""

    node_id: str
    job_id: str
    index: int
    fence: int


@final
@dataclass(frozen=True, slots=True)
class Free:
    """Give back what the attempt held."""

    job: Job
    attempt: Attempt


@final
@dataclass(frozen=True, slots=True)
class Changed:
    """Wake those that wait for the job."""

    job: Job


@final
@dataclass(frozen=True, slots=True)
class SaveCluster:
    """Write the cluster to the store."""

    cluster: Cluster


@final
@dataclass(frozen=True, slots=True)
class DropCluster:
    """Take the cluster out of the store: it is gone."""

    cluster: Cluster


@final
@dataclass(frozen=True, slots=True)
class NoteCluster:
    """Write an event about the cluster."""

    cluster: Cluster
    verb: str
    cause: str = ""
    actor: str = "system"
    data: dict[str, Any] = field(default_factory=dict)


Instruction = SaveCluster | DropCluster | NoteCluster | Save | Note | Start | Stop | Ack | Free | Changed
