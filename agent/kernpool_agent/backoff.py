"""How long to wait before the next try: growing, bounded, jittered so that a thousand nodes do not knock at once."""

import random
from typing import final


@final
class Backoff:
    """Full jitter between half and the whole of a doubling bound."""

    def __init__(self, first_s: float, max_s: float, rng: random.Random | None = None) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._rng = rng or random.Random()  # noqa: S311 - it spreads load, it guards nothing
        self.failures = 0
        """Tries that failed since the last success."""

    def next_s(self) -> float:
        """Note a failure and return how long to wait."""
        bound = min(self._max_s, self._first_s * 2.0 ** min(self.failures, 30))
        self.failures += 1
        return bound * (0.5 + 0.5 * self._rng.random())

    def succeeded(self) -> None:
        """Start from the beginning with the next failure."""
        self.failures = 0
