"""What a starting agent does with each attempt it finds: one pure function over journal, sockets and records.

    supervisor answers | record         | journal      | decision
    -------------------+----------------+--------------+----------------------------------------------
    yes                | any            | any          | Attach: it runs (or is about to end), follow it
    no                 | ended          | any          | Ended as the record says
    no                 | not ended      | any          | Lost (or oom, when its cgroup counted one)
    no                 | none           | accepted     | Lost: never known to have started
    no                 | none           | not accepted | Remove: a directory without owner or story

An attempt that lives is never killed for being unknown to the journal: it is attached and told to the coordinator,
which stops it if it must.
"""

from dataclasses import dataclass
from typing import final

from kernpool_agent.jobs.record import End, end_of, lost
from kernpool_sandbox.kpinit.record import JobRecord, JobState


@final
@dataclass(frozen=True, slots=True)
class Found:
    """What stands on disk and answers, of one attempt."""

    answers: bool
    """Its supervisor's socket answered."""
    record: JobRecord | None
    """The supervisor's record; None when there is none or it is unreadable."""
    oom_kills: int
    """Counted by its cgroup; 0 when that is gone."""
    accepted: bool
    """The journal has accepted it and does not know its end."""


@final
@dataclass(frozen=True, slots=True)
class Attach:
    """It lives: follow it."""


@final
@dataclass(frozen=True, slots=True)
class Conclude:
    """It is over: tell this end."""

    end: End


@final
@dataclass(frozen=True, slots=True)
class Remove:
    """Nothing is known of it and nothing of it runs: remove its directory."""


Decision = Attach | Conclude | Remove


def decide(found: Found, boot_id: str) -> Decision:
    """Decide on one attempt; `boot_id` is the running kernel's."""
    if found.answers:
        return Attach()
    if found.record is not None and found.record.state is JobState.ENDED:
        return Conclude(end_of(found.record, found.oom_kills))
    if found.record is not None or found.accepted:
        return Conclude(lost(found.record, boot_id, found.oom_kills))
    return Remove()
