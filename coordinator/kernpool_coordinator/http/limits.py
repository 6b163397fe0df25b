"""Bounds on what runs at once and how often: long answers in all and for each token, and tries for each address."""

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

from kernpool_coordinator.errors import BusyError


@final
class StreamLimits:
    """Counts long answers; one more than allowed is refused at once, so that short requests always find room."""

    __slots__ = ("_all_max", "_by_token", "_per_token_max", "running")

    def __init__(self, all_max: int, per_token_max: int) -> None:
        self._all_max = all_max
        self._per_token_max = per_token_max
        self._by_token: dict[str, int] = {}
        """Long answers running now by token id; no zeroes."""
        self.running = 0
        """All of them."""

    @contextlib.contextmanager
    def hold(self, token_id: str) -> Iterator[None]:
        """Take one place; raises BusyError when there is none."""
        mine = self._by_token.get(token_id, 0)
        if self.running >= self._all_max:
            raise BusyError(
                f"The coordinator serves {self._all_max} streams already.",
                hint="Try again in a moment, or raise `streams_max` in the coordinator's configuration.",
            )
        if mine >= self._per_token_max:
            raise BusyError(
                f"This token has {mine} streams open already.",
                hint="Close some, or raise `streams_per_token_max` in the coordinator's configuration.",
            )
        self.running += 1
        self._by_token[token_id] = mine + 1
        try:
            yield
        finally:
            self.running -= 1
            if (left := self._by_token[token_id] - 1) > 0:
                self._by_token[token_id] = left
            else:
                del self._by_token[token_id]


@dataclass(slots=True)
class _Bucket:
    """What one address has left."""

    tokens: float
    at_s: float
    """When `tokens` was true."""


@final
class RateLimit:
    """A token bucket for each key, refilled evenly; the least recently seen keys are forgotten first."""

    __slots__ = ("_buckets", "_burst", "_clock", "_keys_max", "_per_s")

    def __init__(self, per_min: int, *, clock: Callable[[], float], keys_max: int = 10_000) -> None:
        self._per_s = per_min / 60
        self._burst = float(per_min)
        self._clock = clock
        """Monotonic seconds."""
        self._keys_max = keys_max
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, key: str) -> bool:
        """True: one more is allowed now, and counted."""
        now_s = self._clock()
        bucket = self._buckets.setdefault(key, _Bucket(self._burst, now_s))
        self._buckets.move_to_end(key)
        if len(self._buckets) > self._keys_max:
            self._buckets.popitem(last=False)
        bucket.tokens = min(self._burst, bucket.tokens + (now_s - bucket.at_s) * self._per_s)
        bucket.at_s = now_s
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True
