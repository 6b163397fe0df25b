"""A clock that stands still until it is told to go on."""

from typing import final

from kernpool_coordinator.core.clock import Now


@final
class ManualClock:
    """Time as a test wants it."""

    def __init__(self, mono: float = 1000.0, unix: float = 1_800_000_000.0) -> None:
        self._now = Now(mono, unix)

    def now(self) -> Now:
        """This moment."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now = Now(self._now.mono + seconds, self._now.unix + seconds)
