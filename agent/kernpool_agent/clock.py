"""The coordinator's time on this node: an offset learned on the link, advanced by our own monotonic clock.

The node's wall clock may jump or be wrong; tokens are judged by this clock only (DECISIONS 18).
"""

import time
from collections.abc import Callable
from typing import final


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)  # unlike CLOCK_MONOTONIC it goes on while the machine sleeps


@final
class CoordinatorClock:
    """Coordinator time in unix seconds. Without a first word from it the wall clock stands in."""

    def __init__(self, monotonic: Callable[[], float] = _boottime, wall: Callable[[], float] = time.time) -> None:
        self._monotonic = monotonic
        self._offset_s = wall() - monotonic()
        """Coordinator's unix time minus our monotonic time."""
        self.learned = False
        """A coordinator has told its time since this agent started."""

    def learn(self, server_unix_s: float, round_trip_s: float = 0.0) -> None:
        """Take the coordinator's time from an answer just received; it is half a round trip old."""
        self._offset_s = server_unix_s + round_trip_s / 2 - self._monotonic()
        self.learned = True

    def now_unix_s(self) -> float:
        """Return the coordinator's time now."""
        return self._monotonic() + self._offset_s
