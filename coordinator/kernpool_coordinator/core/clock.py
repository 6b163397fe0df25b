"""Time as a parameter: a monotonic clock decides, the wall clock is only shown."""

import time
from typing import NamedTuple, Protocol, final


@final
class Now(NamedTuple):
    """One moment on both clocks."""

    mono: float
    """Seconds of the monotonic clock; deadlines and ages are reckoned with it."""
    unix: float
    """Seconds of the wall clock; shown to people."""


class Clock(Protocol):
    """Where the time comes from."""

    def now(self) -> Now:
        """This moment."""
        ...


@final
class SystemClock:
    """The machine's clocks."""

    def now(self) -> Now:
        """This moment."""
        return Now(time.monotonic(), time.time())
