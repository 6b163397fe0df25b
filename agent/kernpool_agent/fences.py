"""Which attempt of a job's rank may start here: the fence of each (job, rank) only grows, and each is started once.

The coordinator may repeat a StartAttempt (a lost answer), or send an old one late (a partition). This class is the
one place that says what to do with it. It does no I/O: the caller journals `Accepted` between `offer` and `commit`.

    (none) --offer--> RESERVED --commit--> ACCEPTED --end--> ENDED --ack--> ACKED --forget--> (none, fence remembered)
                         `-----withdraw--> (none)               `---------forget---------^

Replay of a journal goes through `restore`, which takes each record in any number of copies.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import final

from kernpool_agent.errors import TransitionError
from kernpool_agent.records import Accepted, Acked, AttemptKey, Ended, FenceSeen, Forgotten, Record

FLOORS_MAX = 20_000
"""Forgotten ranks whose fence is remembered, oldest dropped: enough for any message still under way."""

Rank = tuple[str, int]
"""(job_id, index)"""


class Offer(StrEnum):
    """What to do with a StartAttempt."""

    START = "start"
    """Never seen and newer than all seen: journal it, commit, start."""
    DUPLICATE = "duplicate"
    """The newest one, seen before: answer as before, start nothing."""
    STALE = "stale"
    """Older than one seen, or forgotten: refuse."""


class Phase(StrEnum):
    """Where one attempt stands in this class."""

    RESERVED = "reserved"
    """Offered and being journaled: in memory only."""
    ACCEPTED = "accepted"
    """On disk; it may have been started."""
    ENDED = "ended"
    """Its end is known here and told to the coordinator until acknowledged."""
    ACKED = "acked"
    """The coordinator has its end on disk."""


_NEXT: dict[tuple[Phase, str], Phase | None] = {
    (Phase.RESERVED, "commit"): Phase.ACCEPTED,
    (Phase.RESERVED, "withdraw"): None,
    (Phase.ACCEPTED, "end"): Phase.ENDED,
    (Phase.ENDED, "ack"): Phase.ACKED,
    (Phase.ENDED, "forget"): None,
    (Phase.ACKED, "forget"): None,
}
_OVER = (Phase.ENDED, Phase.ACKED)


@final
@dataclass(slots=True)
class Attempt:
    """One attempt as this class holds it."""

    accepted: Accepted
    phase: Phase = Phase.RESERVED
    ended: Ended | None = None
    """Set from ENDED on."""
    history: list[str] = field(default_factory=lambda: ["offer"])
    """Steps taken, for the message of an illegal one."""


@final
class Fences:
    """The table of attempts and the highest fence of each rank."""

    def __init__(self) -> None:
        self._ranks: dict[Rank, dict[int, Attempt]] = {}
        """All attempts that are not forgotten, by rank and fence; no rank is empty."""
        self._floors: dict[Rank, int] = {}
        """Highest fence of a rank's forgotten attempts, in order of forgetting; bounded by FLOORS_MAX."""

    # --- questions ---

    def get(self, key: AttemptKey) -> Attempt | None:
        """Return the attempt, or None when it is unknown or forgotten."""
        return self._ranks.get(_rank(key), {}).get(key.fence)

    def highest(self, job_id: str, index: int) -> int:
        """Return the highest fence seen for this rank, or 0."""
        rank = (job_id, index)
        return max(self._floors.get(rank, 0), *self._ranks.get(rank, {}), 0)

    def in_phase(self, *phases: Phase) -> list[Attempt]:
        """Return all attempts in these phases."""
        return [a for attempts in self._ranks.values() for a in attempts.values() if a.phase in phases]

    def superseded_by(self, key: AttemptKey) -> list[AttemptKey]:
        """Return attempts of the same rank with a lower fence that may still run: end them before this one starts."""
        attempts = self._ranks.get(_rank(key), {})
        return [a.accepted.key for f, a in attempts.items() if f < key.fence and a.phase is Phase.ACCEPTED]

    # --- steps ---

    def offer(self, accepted: Accepted) -> Offer:
        """Decide on a StartAttempt; START reserves it, and the caller must then `commit` or `withdraw`."""
        key = accepted.key
        if self.get(key) is not None and key.fence == self.highest(key.job_id, key.index):
            return Offer.DUPLICATE
        if key.fence <= self.highest(key.job_id, key.index):
            return Offer.STALE
        self._ranks.setdefault(_rank(key), {})[key.fence] = Attempt(accepted)
        return Offer.START

    def commit(self, key: AttemptKey) -> None:
        """The reservation is on disk."""
        self._step(key, "commit")

    def withdraw(self, key: AttemptKey) -> None:
        """The reservation was refused or did not reach the disk: as if it had never been offered."""
        self._step(key, "withdraw")

    def end(self, ended: Ended) -> bool:
        """Note an end; False when one was known already (the first word stands)."""
        attempt = self.get(ended.key)
        if attempt is not None and attempt.phase in _OVER:
            return False
        self._step(ended.key, "end").ended = ended
        return True

    def ack(self, key: AttemptKey) -> bool:
        """The coordinator has the end on disk; False when there is nothing to acknowledge."""
        attempt = self.get(key)
        if attempt is None or attempt.phase is not Phase.ENDED:
            return False
        self._step(key, "ack")
        return True

    def forget(self, job_id: str) -> list[AttemptKey]:
        """Drop the ended attempts of a job and return their keys; live ones stay."""
        ranks = [a for rank, attempts in self._ranks.items() if rank[0] == job_id for a in attempts.values()]
        keys = [a.accepted.key for a in ranks if a.phase in _OVER]
        for key in keys:
            self._step(key, "forget")
            self._raise_floor(_rank(key), key.fence)
        return keys

    def _step(self, key: AttemptKey, event: str) -> Attempt:
        attempt = self.get(key)
        if attempt is None:
            raise TransitionError(f"{event} of {key}: no such attempt")
        if (attempt.phase, event) not in _NEXT:
            raise TransitionError(f"{event} of {key} while {attempt.phase}; before: {', '.join(attempt.history)}")
        attempt.history.append(event)
        following = _NEXT[attempt.phase, event]
        if following is None:
            self._drop(key)
        else:
            attempt.phase = following
        return attempt

    def _drop(self, key: AttemptKey) -> None:
        attempts = self._ranks[_rank(key)]
        del attempts[key.fence]
        if not attempts:
            del self._ranks[_rank(key)]

    def _raise_floor(self, rank: Rank, fence: int) -> None:
        fence = max(fence, self._floors.pop(rank, 0))  # popped, so that it becomes the newest
        self._floors[rank] = fence
        while len(self._floors) > FLOORS_MAX:
            del self._floors[next(iter(self._floors))]

    # --- the journal ---

    def restore(self, records: Iterable[Record]) -> None:
        """Replay a journal; copies of a record, and records of attempts that are gone, change nothing."""
        for record in records:
            match record:
                case Accepted():
                    if self.offer(record) is Offer.START:
                        self.commit(record.key)
                case Ended() if self.get(record.key) is not None:
                    self.end(record)
                case Acked():
                    self.ack(record.key)
                case Forgotten():
                    self.forget(record.job_id)
                case FenceSeen():
                    self._raise_floor((record.job_id, record.index), record.fence)
                case _:
                    pass  # the end of an attempt that was forgotten before this journal was compacted

    def note_fence(self, key: AttemptKey) -> None:
        """Remember that this fence was used, also when all else about it is gone."""
        if key.fence > self.highest(key.job_id, key.index):
            self._raise_floor(_rank(key), key.fence)

    def snapshot(self) -> Iterator[Record]:
        """Yield the records from which `restore` builds this table again.

        Reservations are among them: one may reach the disk while the snapshot is written. Should the agent die before
        it commits, the attempt is told as lost, which is always safe.
        """
        for (job_id, index), fence in self._floors.items():
            yield FenceSeen(job_id, index, fence)
        for attempts in self._ranks.values():
            for _, attempt in sorted(attempts.items()):
                yield from _records_of(attempt)

    def __repr__(self) -> str:
        counts = {phase.value: len(self.in_phase(phase)) for phase in Phase}
        return f"<Fences {counts} floors={len(self._floors)}>"


def _rank(key: AttemptKey) -> Rank:
    return (key.job_id, key.index)


def _records_of(attempt: Attempt) -> Iterator[Record]:
    yield attempt.accepted
    if attempt.ended is not None:
        yield attempt.ended
    if attempt.phase is Phase.ACKED:
        yield Acked(attempt.accepted.key)
