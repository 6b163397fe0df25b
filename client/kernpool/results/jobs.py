"""Jobs and their attempts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final

from kernpool.protocol import fields as read

Object = Mapping[str, Any]

JOB_ENDS: Final = frozenset({"succeeded", "failed", "cancelled"})
"""States that a job never leaves."""


@final
@dataclass(frozen=True, slots=True)
class AttemptInfo:
    """One try of one rank of a job."""

    index: int
    """The rank."""
    fence: int
    node: str
    state: str
    reason: str | None
    exit_code: int | None
    detail: str
    started_unix_s: float | None
    ended_unix_s: float | None

    @classmethod
    def read(cls, data: Object) -> "AttemptInfo":
        """Read the JSON form."""
        return cls(
            index=read.whole(data, "index"),
            fence=read.whole(data, "fence"),
            node=read.text(data, "node"),
            state=read.text(data, "state"),
            reason=read.maybe_text(data, "reason"),
            exit_code=read.maybe_whole(data, "exit_code"),
            detail=read.text(data, "detail"),
            started_unix_s=read.maybe_number(data, "started_unix_s"),
            ended_unix_s=read.maybe_number(data, "ended_unix_s"),
        )


@final
@dataclass(frozen=True, slots=True)
class JobInfo:
    """One job."""

    id: str
    name: str
    cluster: str | None
    state: str
    """pending, starting, setting_up, running, cancelling, succeeded, failed or cancelled."""
    reason: str | None
    """Why it ended, from the closed list of end reasons; None while it goes on."""
    exit_code: int | None
    detail: str
    """Why it waits, or how it ended, in one sentence."""
    num_nodes: int
    attempts: tuple[AttemptInfo, ...]
    restarts: int
    created_unix_s: float
    started_unix_s: float | None
    ended_unix_s: float | None
    raw: Object = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def read(cls, data: Object) -> "JobInfo":
        """Read the JSON form."""
        return cls(
            id=read.name(data, "id"),
            name=read.text(data, "name"),
            cluster=read.maybe_text(data, "cluster"),
            state=read.name(data, "state"),
            reason=read.maybe_text(data, "reason"),
            exit_code=read.maybe_whole(data, "exit_code"),
            detail=read.text(data, "detail"),
            num_nodes=read.whole(data, "num_nodes", 1),
            attempts=read.records(data, "attempts", AttemptInfo.read),
            restarts=read.whole(data, "restarts"),
            created_unix_s=read.number(data, "created_unix_s"),
            started_unix_s=read.maybe_number(data, "started_unix_s"),
            ended_unix_s=read.maybe_number(data, "ended_unix_s"),
            raw=data,
        )

    @property
    def ended(self) -> bool:
        """It is over and nothing of this record changes any more."""
        return self.state in JOB_ENDS

    @property
    def began_unix_s(self) -> float | None:
        """When it began to run, as the job or else its attempts tell; None: not yet."""
        if self.started_unix_s is not None:
            return self.started_unix_s
        return min((attempt.started_unix_s for attempt in self.attempts if attempt.started_unix_s), default=None)

    def node_of(self, index: int) -> str:
        """Name the node of a rank's newest attempt; empty while it has none."""
        nodes = [attempt.node for attempt in self.attempts if attempt.index == index]
        return nodes[-1] if nodes else ""
