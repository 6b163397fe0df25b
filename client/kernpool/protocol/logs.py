"""Where a reader of a job's log stands, over cut connections, rotated logs and restarted attempts."""

from collections.abc import Mapping
from typing import Final, final

from kernpool.protocol.calls import job_logs_path

OFFSET_HEADER: Final = "kp-log-offset"
STALLS_MAX: Final = 8
"""Connections in a row that broke without a single byte."""
FIRST_PAUSE_S: Final = 0.1
PAUSE_S_MAX: Final = 5.0


@final
class LogPosition:
    """Asks for the right bytes next, and knows what was lost."""

    __slots__ = ("_follow", "_index", "_is_placed", "_job_id", "_offset", "_stalls", "_tail", "lost_bytes")

    def __init__(self, job_id: str, *, index: int, offset: int, follow: bool, tail: int | None) -> None:
        self._job_id = job_id
        self._index = index
        self._offset = offset
        self._follow = follow
        self._tail = tail
        self._is_placed = False
        """An answer told the offset of its first byte: from then on we know where we are."""
        self._stalls = 0
        self.lost_bytes = 0
        """Rotated away on the node before they could be read."""

    def path(self, *, direct: bool) -> str:
        """Give the path of the next request."""
        tail = None if self._is_placed else self._tail
        return job_logs_path(
            self._job_id, self._index, offset=self._offset, follow=self._follow, tail=tail, direct=direct
        )

    def begin(self, headers: Mapping[str, str]) -> int:
        """Take the head of an answer; gives the number of bytes that were lost before its first one."""
        text = headers.get(OFFSET_HEADER, "")
        first = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else self._offset
        lost = max(0, first - self._offset) if self._is_placed else 0
        self.lost_bytes += lost
        self._offset, self._is_placed = first, True
        return lost

    def advance(self, count: int) -> None:
        """Count bytes that were given out."""
        self._offset += count
        self._stalls = 0

    def broke(self) -> float | None:
        """Learn of a broken connection; gives the pause before the next try, or None: give up."""
        self._stalls += 1
        if self._stalls > STALLS_MAX:
            return None
        return float(min(FIRST_PAUSE_S * 2 ** (self._stalls - 1), PAUSE_S_MAX))
