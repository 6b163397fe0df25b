"""When a failed call may be sent again: decided from what happened, a few times at most, never twice the effect."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Final, final

from kernpool.errors import UnreachableError
from kernpool.protocol.origin import Origin

TRIES_MAX: Final = 4
FIRST_PAUSE_S: Final = 0.05
PAUSE_GROWTH: Final = 4.0
RETRY_AFTER_S_MAX: Final = 30.0
RETRY_STATUSES: Final = frozenset({429, 502, 503, 504})


class TransportError(Exception):
    """A connection could not be made, or it broke."""

    def __init__(self, message: str, *, sent: bool, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out
        """Nothing broke; nothing came in time."""
        self.sent = sent
        """The request may have reached the other side: only a repeatable call may be sent again."""


@final
class Retries:
    """The tries of one call."""

    __slots__ = ("_deadline_s", "_pause_s", "_random", "_repeatable", "_tries")

    def __init__(self, *, repeatable: bool, deadline_s: float, random: Callable[[], float]) -> None:
        self._repeatable = repeatable
        self._deadline_s = deadline_s
        """On the clock of the caller's `now_s`: no pause goes beyond it."""
        self._random = random
        """0 to 1: spreads the tries of many clients."""
        self._pause_s = FIRST_PAUSE_S
        self._tries = 1

    def after_error(self, error: TransportError, now_s: float) -> float | None:
        """Give the pause before the next try, or None: give up."""
        if error.sent and not self._repeatable:
            return None
        return self._next(now_s, 0.0)

    def after_status(self, status: int, retry_after: str | None, now_s: float) -> float | None:
        """Give the pause where the server asks for another try (Retry-After), or None: take the answer."""
        if status not in RETRY_STATUSES or retry_after is None or not self._repeatable:
            return None
        wish_s = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else FIRST_PAUSE_S
        return self._next(now_s, wish_s) if wish_s <= RETRY_AFTER_S_MAX else None

    def _next(self, now_s: float, at_least_s: float) -> float | None:
        pause_s = max(at_least_s, self._pause_s * (0.5 + self._random() / 2))
        if self._tries >= TRIES_MAX or now_s + pause_s >= self._deadline_s:
            return None
        self._tries += 1
        self._pause_s *= PAUSE_GROWTH
        return pause_s


def unreachable(origin: Origin, error: TransportError) -> UnreachableError:
    """Make the error that people see."""
    what = "node" if origin.is_node else "coordinator"
    if error.sent:
        message = f"The connection to the {what} at {origin.url} broke: {error}."
        return UnreachableError(message, hint="What was asked for may have been done: look before you try again.")
    return UnreachableError(
        f"Cannot reach the {what} at {origin.url}: {error}.", hint="See whether it runs with: kernpool api status"
    )


@contextlib.contextmanager
def told(origin: Origin) -> Iterator[None]:
    """Turn a TransportError inside into an UnreachableError."""
    try:
        yield
    except TransportError as error:
        raise unreachable(origin, error) from error
