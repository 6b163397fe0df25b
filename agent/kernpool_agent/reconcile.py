"""What to make of attempts after a restart: the journal's word beside what kp-init's records and sockets say.

One pure function, so that every pair can be tested. docs/agent.md has the table.

| journal \\ node    | runs           | ended          | knows nothing        |
|-------------------|----------------|----------------|----------------------|
| nothing           | adopt          | adopt, end     | -                    |
| accepted          | go on          | end            | end as lost          |
| ended, acked      | stop           | -              | -                    |
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from kernpool_agent.fences import Fences, Phase
from kernpool_agent.records import Accepted, AttemptKey, Ended
from kernpool_mesh.messages import AttemptState, AttemptStatus
from kernpool_mesh.reasons import EndReason

NEVER_SEEN = "the agent was killed between accepting it and its start, or all its records are gone"


@final
@dataclass(frozen=True, slots=True)
class Adopt:
    """It is here and the journal does not know it: take it over as accepted."""

    accepted: Accepted


@final
@dataclass(frozen=True, slots=True)
class GoOn:
    """It runs and is ours: count it."""

    key: AttemptKey


@final
@dataclass(frozen=True, slots=True)
class End:
    """It is over: write it down and tell it."""

    ended: Ended


@final
@dataclass(frozen=True, slots=True)
class Stop:
    """It was told as over, yet it lives: end it, so that nothing runs that nobody counts on."""

    key: AttemptKey


Instruction = Adopt | GoOn | End | Stop


def reconcile(fences: Fences, statuses: Iterable[AttemptStatus], now_unix_s: float) -> list[Instruction]:
    """Return what to do, in order."""
    instructions: list[Instruction] = []
    seen = set()
    for status in statuses:
        key = key_of(status)
        seen.add(key)
        instructions += _for_one(fences, key, status)
    for attempt in fences.in_phase(Phase.ACCEPTED):
        key = attempt.accepted.key
        if key not in seen:
            instructions.append(End(Ended(key, EndReason.LOST, detail=NEVER_SEEN, ended_unix_s=now_unix_s)))
    return instructions


def _for_one(fences: Fences, key: AttemptKey, status: AttemptStatus) -> list[Instruction]:
    attempt = fences.get(key)
    over = status.state is AttemptState.ENDED
    if attempt is None:
        adopt = Adopt(Accepted(key, accepted_unix_s=status.started_unix_s))
        return [adopt, End(ended_of(status))] if over else [adopt]
    if attempt.phase is Phase.ACCEPTED:
        return [End(ended_of(status))] if over else [GoOn(key)]
    return [] if over else [Stop(key)]


def key_of(status: AttemptStatus) -> AttemptKey:
    """Return the attempt that a status is about."""
    return AttemptKey(status.job_id, status.index, status.fence)


def ended_of(status: AttemptStatus) -> Ended:
    """Return the journal's record of an ended status."""
    return Ended(
        key=key_of(status),
        reason=status.reason or EndReason.LOST,
        exit_code=status.exit_code,
        detail=status.detail,
        log_bytes=status.log_bytes,
        started_unix_s=status.started_unix_s,
        ended_unix_s=status.ended_unix_s,
    )


def status_of(ended: Ended) -> AttemptStatus:
    """Return the link's status of a journaled end."""
    return AttemptStatus(
        job_id=ended.key.job_id,
        index=ended.key.index,
        fence=ended.key.fence,
        state=AttemptState.ENDED,
        reason=ended.reason,
        exit_code=ended.exit_code,
        detail=ended.detail,
        log_bytes=ended.log_bytes,
        started_unix_s=ended.started_unix_s,
        ended_unix_s=ended.ended_unix_s,
    )
