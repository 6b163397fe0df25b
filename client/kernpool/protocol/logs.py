"""Where a reader of a job's log stands, over cut connections, rotated logs and restarted attempts."""

from collections.abc import Mapping
from typing import Final, final

from kernpool.protocol.calls import job_logs_path

OFFSET_HEADER: Final = "kp-log-offset"
FENCE_HEADER: Final = "kp-log-fence"
"""Which attempt of the rank a log is of; it grows with each."""
STALLS_MAX: Final = 8
"""Connections in a row that broke without a single byte."""
FIRST_PAUSE_S: Final = 0.1
PAUSE_S_MAX: Final = 5.0


@final
class LogPosition:
    """Asks for the right bytes next, and knows what was lost."""

    __slots__ = (
        "_fence", "_follow", "_index", "_is_placed", "_job_id", "_offset", "_read_fence", "_stalls", "_tail", "is_over",
        "is_restart", "lost_bytes",
    )  # fmt: skip

    def __init__(self, job_id: str, *, index: int, offset: int, follow: bool, tail: int | None) -> None:
        self._job_id = job_id
        self._index = index
        self._offset = offset
        self._follow = follow
        self._tail = tail
        self._is_placed = False
        """An answer told the offset of its first byte: from then on we know where we are."""
        self._fence = 0
        """Of the attempt whose log comes now."""
        self._read_fence = 0
        """Of the attempt that was read to its end: only a later one is wanted. 0: any."""
        self._stalls = 0
        self.is_restart = False
        """The answer that just began is the first of a later attempt."""
        self.is_over = False
        """There is no later attempt: the job has ended."""
        self.lost_bytes = 0
        """Rotated away on the node before they could be read."""

    def path(self, *, direct: bool) -> str:
        """Give the path of the next request."""
        tail = None if self._is_placed else self._tail
        return job_logs_path(
            self._job_id,
            self._index,
            offset=self._offset,
            follow=self._follow,
            tail=tail,
            fence=self._read_fence,
            direct=direct,
        )

    @property
    def needs_coordinator(self) -> bool:
        """A node cannot tell whether and where there will be a later attempt."""
        return self._read_fence > 0

    def begin(self, headers: Mapping[str, str]) -> int:
        """Take the head of an answer; gives the number of bytes that were lost before its first one."""
        before, self._fence = self._fence, _number(headers.get(FENCE_HEADER), 0)
        self.is_over = 0 < self._fence <= self._read_fence
        self.is_restart = self._read_fence > 0 and self._fence > before
        first = _number(headers.get(OFFSET_HEADER), self._offset)
        lost = max(0, first - self._offset) if self._is_placed else 0
        self.lost_bytes += lost
        self._offset, self._is_placed = first, True
        return lost

    def advance(self, count: int) -> None:
        """Count bytes that were given out."""
        self._offset += count
        self._stalls = 0

    def ended(self) -> bool:
        """Learn that the attempt's log was read to its end; True: ask again, for a later attempt's or the job's end."""
        if not self._follow or self.is_over or not self._fence:
            return False
        self._read_fence, self._offset, self._is_placed, self._tail = self._fence, 0, False, None
        return True

    def broke(self) -> float | None:
        """Learn of a broken connection; gives the pause before the next try, or None: give up."""
        self._stalls += 1
        if self._stalls > STALLS_MAX:
            return None
        return float(min(FIRST_PAUSE_S * 2 ** (self._stalls - 1), PAUSE_S_MAX))


def _number(text: str | None, default: int) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 20 else default
