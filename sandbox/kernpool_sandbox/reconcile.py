"""What to do with what an earlier agent left: journal, sockets and cgroups compared, decided by one pure function.

docs/sandbox.md shows the table. Nothing that lives and was handed out is ever killed for not being known; it is adopted
and its own deadline ends it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import final

from kernpool_mesh.reasons import EndReason
from kernpool_sandbox import slots
from kernpool_sandbox.journal import SlotRecord
from kernpool_sandbox.kpinit.record import EndCause, EndRecord


class Found(StrEnum):
    """What stands on the node under a slot's name."""

    CLAIMED = "claimed"
    """A PID 1 answers and says that it was handed out."""
    PARKED = "parked"
    """A PID 1 answers and says that it was not."""
    SILENT = "silent"
    """Its socket takes connections but nothing answers: frozen, or starved."""
    DEAD = "dead"
    """A socket file or an end record without a living PID 1."""
    NOTHING = "nothing"
    """No trace."""


@final
@dataclass(frozen=True, slots=True)
class SlotFacts:
    """What was found of one slot."""

    found: Found
    end: EndRecord | None = None
    """What its end record says, if it says anything."""
    oom_kills: int = 0
    """Its cgroup's OOM counter now."""


@final
@dataclass(frozen=True, slots=True)
class Adopt:
    """A living sandbox: serve it again."""

    record: SlotRecord


@final
@dataclass(frozen=True, slots=True)
class AdoptUnknown:
    """A living sandbox of which the journal knows nothing: serve it under its slot's name."""

    slot: str


@final
@dataclass(frozen=True, slots=True)
class End:
    """Kill what may live of the slot, give its parts back, and remember the end if it was handed out."""

    slot: str
    record: SlotRecord | None
    reason: EndReason | None
    """None: it was never handed out, so nobody waits for a reason."""
    detail: str
    kill: bool


@final
@dataclass(frozen=True, slots=True)
class RemoveCgroup:
    """A cgroup of ours that serves nothing."""

    name: str


Decision = Adopt | AdoptUnknown | End | RemoveCgroup


def reconcile(
    journal: Mapping[str, SlotRecord],
    facts: Mapping[str, SlotFacts],
    cgroups: Iterable[str],
    *,
    same_boot: bool,
) -> list[Decision]:
    """Decide about every slot that the journal or the node knows, and every cgroup that is left."""
    decisions: list[Decision] = []
    kept: set[str] = set()
    nothing = SlotFacts(Found.NOTHING)
    for slot in sorted(journal.keys() | facts.keys()):
        decision = _decide(slot, journal.get(slot), facts.get(slot, nothing), same_boot=same_boot)
        decisions.append(decision)
        kept.add(_cgroup(decision))
    decisions.extend(RemoveCgroup(name) for name in sorted(set(cgroups) - kept))
    return decisions


def _cgroup(decision: Decision) -> str:
    """Return the cgroup that a decision deals with by itself: an End gives it back, the others go on using it."""
    match decision:
        case Adopt(record):
            return record.cgroup
        case AdoptUnknown(slot) | End(slot=slot):
            return slots.parse(slot).cgroup
        case RemoveCgroup(name):
            return name


def _decide(slot: str, record: SlotRecord | None, facts: SlotFacts, *, same_boot: bool) -> Decision:
    if record is None or record.claim is None:
        if facts.found is Found.CLAIMED:
            return AdoptUnknown(slot)  # a journal that was cut or lost
        # A parked one is cheaper made anew than checked for being what this agent would make today.
        return End(slot, record, None, "", kill=facts.found in (Found.PARKED, Found.SILENT))
    match facts.found:
        case Found.CLAIMED:
            return Adopt(record)
        case Found.PARKED:
            detail = "the agent died while this sandbox was handed out, so nobody was told of it"
            return End(slot, record, EndReason.LOST, detail, kill=True)
        case Found.SILENT:
            detail = "its PID 1 did not answer the agent that came back"
            return End(slot, record, EndReason.LOST, detail, kill=True)
        case Found.DEAD | Found.NOTHING:
            reason, detail = end_reason(facts.end, facts.oom_kills - record.oom_kills_before)
            if not same_boot and facts.end is None:
                reason, detail = EndReason.LOST, "the node was restarted"
            return End(slot, record, reason, detail, kill=False)


def end_reason(end: EndRecord | None, oom_kills: int) -> tuple[EndReason, str]:
    """Say why a sandbox that nobody asked us to end is over: its own record first, then the kernel's OOM counter."""
    match end.cause if end is not None else None:
        case EndCause.TTL:
            return EndReason.TTL, "its time to live passed"
        case EndCause.ORPHANED:
            return EndReason.LOST, "its agent was gone before it was handed out"
        case EndCause.SHUTDOWN | EndCause.KILLED:
            return EndReason.CANCELLED, end.detail if end is not None else ""
        case EndCause.SETUP_FAILED:
            return EndReason.START_FAILED, end.detail if end is not None else ""
        case EndCause.DIED | None:
            if oom_kills > 0:
                return EndReason.OOM, "its memory limit was reached and the kernel killed its PID 1"
            if end is None:
                return EndReason.LOST, "its PID 1 is gone and nobody saw how it ended"
            signal = end.status & 0x7F
            return EndReason.KILLED, f"its PID 1 was killed by signal {signal}" if signal else "its PID 1 died"
