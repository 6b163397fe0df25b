"""The parked pool: how many sandboxes of each template stand ready, decided without any I/O.

Events come in as method calls that carry the time; `advance` gives back what is to be done (`Park`, `Drain`). A pool is
automatic (it keeps as many parked as lately lived at once) until a target is set for its template. docs/sandbox.md has
the drawing.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import final

from kernpool_sandbox.errors import IllegalTransitionError


class PoolPhase(StrEnum):
    """Where the pool of one template stands."""

    IDLE = "idle"
    """Nothing is wanted and nothing is parked."""
    FILLING = "filling"
    """Fewer are parked than wanted; some are being made or wait for a quiet moment."""
    FULL = "full"
    """As many are parked as wanted."""
    DRAINING = "draining"
    """More are parked, or on their way, than wanted; the surplus is being ended."""
    RESTING = "resting"
    """Parking failed; it is tried again after a growing pause."""


_P = PoolPhase
TRANSITIONS: Mapping[PoolPhase, frozenset[PoolPhase]] = {
    _P.IDLE: frozenset({_P.FILLING, _P.FULL, _P.DRAINING, _P.RESTING}),
    _P.FILLING: frozenset({_P.FULL, _P.DRAINING, _P.RESTING, _P.IDLE}),
    _P.FULL: frozenset({_P.FILLING, _P.DRAINING, _P.RESTING, _P.IDLE}),
    _P.DRAINING: frozenset({_P.IDLE, _P.FULL, _P.FILLING, _P.RESTING}),
    _P.RESTING: frozenset({_P.FILLING, _P.FULL, _P.DRAINING, _P.IDLE}),
}
"""Legal changes of phase. A pool is IDLE before it was ever used and may be forgotten when it is IDLE again."""


@final
@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """Bounds of every pool of a node."""

    parked_max: int = 4096
    """Parked and half-made sandboxes of all pools together."""
    auto_max: int = 256
    """Largest target that a pool gives itself."""
    auto_min: int = 4
    """Smallest target of a pool in use, so that a lone user also finds one ready."""
    auto_drain_after_s: float = 60.0
    """An automatic pool that was not used for so long is drained; also how long a peak is remembered."""
    refill_at_once: int = 8
    """With fewer parked than this, and no more than this alive (so no burst is on), the refill waits for no quiet."""
    refill_patience_s: float = 0.5
    """A pool that is low is refilled after this even in a burst that does not end."""
    refill_quiet_s: float = 0.03
    """So long after the last claim the node counts as quiet: the refill then hinders nobody."""
    busy_concurrency: int = 1
    """Sandboxes parked at the same time while claims go on."""
    quiet_concurrency: int = 8
    """Sandboxes parked at the same time in a quiet moment."""
    retry_min_s: float = 0.5
    retry_max_s: float = 60.0


@final
@dataclass(frozen=True, slots=True)
class Target:
    """What somebody asked for explicitly."""

    parked: int
    drain_after_s: float = 600.0
    """0: never."""


@final
@dataclass(frozen=True, slots=True)
class Park:
    """Instruction: make so many sandboxes of this template and report each by `parked` or `park_failed`."""

    key: str
    count: int


@final
@dataclass(frozen=True, slots=True)
class Drain:
    """Instruction: end these parked sandboxes; the pool has forgotten them already."""

    key: str
    slots: tuple[str, ...]


@final
@dataclass(slots=True)
class _Pool:
    """The state of one template's pool."""

    key: str
    phase: PoolPhase = PoolPhase.IDLE
    parked: list[str] = field(default_factory=list)
    """Slots that stand ready; the last one parked is claimed first, its memory being warm."""
    parking: int = 0
    """How many are being made for this pool."""
    live: int = 0
    """Claimed or cold-made sandboxes of this template that have not ended."""
    peak: int = 0
    """Most that lived at once lately."""
    peak_at_s: float = 0.0
    """When the peak was last reached."""
    used_at_s: float = 0.0
    """When a sandbox of this template was last asked for, or its target set."""
    filling_at_s: float = 0.0
    """When it last began to lack some."""
    target: Target | None = None
    """What was set explicitly; None: automatic."""
    failures: int = 0
    """Parkings that failed in a row."""
    retry_at_s: float = 0.0
    """Before this nothing is parked (after a failure)."""
    hits: int = 0
    misses: int = 0
    last_error: str = ""
    story: deque[str] = field(default_factory=lambda: deque(maxlen=24))
    """The last changes of phase, for IllegalTransitionError."""


@final
@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """One pool as people and metrics see it."""

    key: str
    phase: PoolPhase
    parked: int
    parking: int
    target: int
    hits: int
    misses: int
    last_error: str


@final
class ParkedPools:
    """All pools of a node."""

    __slots__ = ("_policy", "_pools")

    def __init__(self, policy: PoolPolicy | None = None) -> None:
        self._policy = policy or PoolPolicy()
        self._pools: dict[str, _Pool] = {}

    # --- events ---

    def claim(self, key: str, now_s: float) -> str | None:
        """Somebody wants a sandbox: return a parked slot, or None when it must be made cold. Counts it as living."""
        pool = self._pool(key)
        pool.used_at_s = now_s
        pool.live += 1
        if pool.live >= pool.peak:
            pool.peak, pool.peak_at_s = pool.live, now_s
        if not pool.parked:
            pool.misses += 1
            return None
        pool.hits += 1
        return pool.parked.pop()

    def returned(self, key: str, slot: str) -> None:
        """A slot could not be handed out, for a reason that is not its own: it is parked. The claim still counts."""
        self._pool(key).parked.append(slot)

    def adopted(self, key: str) -> None:
        """A living sandbox of this template was taken over from an earlier agent."""
        self._pool(key).live += 1

    def ended(self, key: str) -> None:
        """A sandbox that `claim` or `adopted` counted has ended, or could not be made."""
        pool = self._pool(key)
        assert pool.live > 0, f"pool {key}: more sandboxes ended than began"
        pool.live -= 1

    def parked(self, key: str, slot: str) -> None:
        """One that `Park` asked for stands ready."""
        pool = self._pool(key)
        assert pool.parking > 0, f"pool {key}: {slot} was not asked for"
        pool.parking -= 1
        pool.failures = 0
        pool.last_error = ""
        pool.parked.append(slot)

    def park_failed(self, key: str, now_s: float, error: str) -> None:
        """One that `Park` asked for could not be made."""
        pool = self._pool(key)
        assert pool.parking > 0, f"pool {key}: nothing was being parked"
        pool.parking -= 1
        pool.last_error = error
        policy = self._policy
        pool.retry_at_s = now_s + min(policy.retry_max_s, policy.retry_min_s * 2 ** min(pool.failures, 16))
        pool.failures += 1

    def lost(self, key: str, slot: str) -> bool:
        """A parked one died by itself; False when it was not parked any more."""
        pool = self._pool(key)
        if slot not in pool.parked:
            return False
        pool.parked.remove(slot)
        return True

    def set_targets(self, targets: Mapping[str, Target], now_s: float) -> None:
        """Keep exactly these; pools that are not named are drained and automatic again."""
        for key in targets:
            self._pool(key)
        for key, pool in self._pools.items():
            pool.target = targets.get(key)
            pool.peak = 0
            pool.used_at_s = now_s
            pool.failures, pool.retry_at_s = 0, 0.0

    # --- decisions ---

    def advance(self, now_s: float) -> list[Park | Drain]:
        """Bring every pool's phase up to date and return what is to be done now."""
        instructions: list[Park | Drain] = []
        room = self._policy.parked_max - sum(len(pool.parked) + pool.parking for pool in self._pools.values())
        for pool in list(self._pools.values()):
            target = self._target(pool, now_s)
            self._settle(pool, target, now_s)
            if pool.phase is PoolPhase.DRAINING and pool.parked:
                instructions.append(self._drain(pool, target))
                self._settle(pool, target, now_s)
            elif pool.phase is PoolPhase.FILLING and (count := min(room, self._next_batch(pool, target, now_s))) > 0:
                pool.parking += count
                room -= count
                instructions.append(Park(pool.key, count))
            if pool.phase is PoolPhase.IDLE and not pool.live and pool.target is None:
                del self._pools[pool.key]
        return instructions

    def wakeup_s(self, now_s: float) -> float | None:
        """Return when `advance` next has something to do by itself; None: only after an event."""
        times = [time for pool in self._pools.values() for time in self._due(pool, now_s)]
        return min(times, default=None)

    # --- what it says about itself ---

    def statistics(self, now_s: float) -> list[PoolStatistics]:
        """One record for each pool that is in use."""
        return [
            PoolStatistics(
                pool.key,
                pool.phase,
                len(pool.parked),
                pool.parking,
                self._target(pool, now_s),
                pool.hits,
                pool.misses,
                pool.last_error,
            )
            for pool in self._pools.values()
        ]

    def slots(self) -> Iterable[str]:
        """Every parked slot."""
        return [slot for pool in self._pools.values() for slot in pool.parked]

    @property
    def parked_total(self) -> int:
        """How many stand parked in all pools."""
        return sum(len(pool.parked) for pool in self._pools.values())

    def _pool(self, key: str) -> _Pool:
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = _Pool(key)
        return pool

    def _target(self, pool: _Pool, now_s: float) -> int:
        policy = self._policy
        if pool.target is not None:
            drain_after_s = pool.target.drain_after_s
            drained = drain_after_s > 0 and now_s >= pool.used_at_s + drain_after_s and not pool.live
            return 0 if drained else min(pool.target.parked, policy.parked_max)
        if now_s >= pool.peak_at_s + policy.auto_drain_after_s:
            pool.peak, pool.peak_at_s = pool.live, now_s
        if pool.peak == 0 or now_s >= pool.used_at_s + policy.auto_drain_after_s:
            return 0
        return min(policy.auto_max, max(policy.auto_min, pool.peak))

    def _settle(self, pool: _Pool, target: int, now_s: float) -> None:
        have = len(pool.parked) + pool.parking
        if have > target:
            phase = PoolPhase.DRAINING
        elif len(pool.parked) == target:
            phase = PoolPhase.FULL if target else PoolPhase.IDLE
        elif pool.failures and now_s < pool.retry_at_s:
            phase = PoolPhase.RESTING
        else:
            phase = PoolPhase.FILLING
        if phase is not pool.phase:
            self._enter(pool, phase)
            pool.filling_at_s = now_s

    def _enter(self, pool: _Pool, phase: PoolPhase) -> None:
        pool.story.append(f"{pool.phase} -> {phase} (parked {len(pool.parked)}, parking {pool.parking})")
        if phase not in TRANSITIONS[pool.phase]:
            raise IllegalTransitionError(f"pool {pool.key}: " + "; ".join(pool.story))
        pool.phase = phase

    def _next_batch(self, pool: _Pool, target: int, now_s: float) -> int:
        policy = self._policy
        missing = target - len(pool.parked) - pool.parking
        if now_s >= pool.used_at_s + policy.refill_quiet_s:
            return min(missing, policy.quiet_concurrency - pool.parking)
        patient = pool.live > policy.refill_at_once and now_s < pool.filling_at_s + policy.refill_patience_s
        if len(pool.parked) < policy.refill_at_once and not patient:
            return min(missing, policy.busy_concurrency - pool.parking)
        return 0

    def _drain(self, pool: _Pool, target: int) -> Drain:
        surplus = min(len(pool.parked), len(pool.parked) + pool.parking - target)
        slots, pool.parked = pool.parked[:surplus], pool.parked[surplus:]
        return Drain(pool.key, tuple(slots))

    def _due(self, pool: _Pool, now_s: float) -> Iterable[float]:
        policy = self._policy
        if pool.phase is PoolPhase.RESTING:
            yield pool.retry_at_s
        elif pool.phase is PoolPhase.FILLING and now_s < (quiet_at_s := pool.used_at_s + policy.refill_quiet_s):
            yield quiet_at_s
            yield from (time for time in (pool.filling_at_s + policy.refill_patience_s,) if time > now_s)
        drain_after_s = policy.auto_drain_after_s if pool.target is None else pool.target.drain_after_s
        if pool.phase is not PoolPhase.IDLE and drain_after_s > 0:
            yield from (time for time in (pool.used_at_s + drain_after_s,) if time > now_s)
        if pool.target is None and pool.peak > pool.live:
            yield pool.peak_at_s + drain_after_s
