"""One attempt's log as a stream of bytes with offsets, read from the segments that its supervisor writes.

The supervisor appends to `log.<start offset>`, opens the next segment when one is full and removes the oldest beyond
the job's bound. A reader names bytes by their offset since the attempt's first byte; what was rotated away is seen as
a jump of the offset, never as silence.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, final

from kernpool_agent.jobs.watch import DirectoryWatch

SEGMENT_PREFIX: Final = "log."
READ_BYTES: Final = 256 * 1024
_TAIL_BLOCK_BYTES: Final = 64 * 1024
TAIL_SCAN_BYTES_MAX: Final = 64 << 20
"""How far back a `tail` looks for line ends; a log with longer lines gives less."""
_ROTATION_RETRIES: Final = 16


@final
class JobLog:
    """A reader's view of one attempt's log; each reader has its own (it holds one segment open). Close it."""

    __slots__ = ("_directory", "_ended", "_fd", "_fd_start", "_watch", "fence")

    def __init__(self, directory: Path, watch: DirectoryWatch, ended: Callable[[], bool], fence: int = 0) -> None:
        self._directory = directory
        self._watch = watch
        self._ended = ended
        """Whether the attempt is over and its last byte is in the segments."""
        self._fd = -1
        """The segment read last; held so that rotation cannot take it from under a slow reader."""
        self._fd_start = -1
        self.fence = fence
        """Which attempt of its rank this is the log of."""

    @property
    def ended(self) -> bool:
        """Whether nothing will be added any more."""
        return self._ended()

    @property
    def start_offset(self) -> int:
        """Offset of the oldest byte that is still kept; 0 when nothing was rotated away."""
        starts = self._starts()
        return starts[0] if starts else 0

    @property
    def end_offset(self) -> int:
        """Offset behind the newest byte: all bytes ever written."""
        for _ in range(_ROTATION_RETRIES):
            starts = self._starts()
            if not starts:
                return 0
            try:
                return starts[-1] + self._path(starts[-1]).stat().st_size
            except FileNotFoundError:
                continue
        return 0

    def read(self, offset: int, limit: int = READ_BYTES) -> tuple[bytes, int]:
        """Read up to `limit` bytes from `offset`.

        Returns (bytes, next offset). Empty bytes: nothing there yet. `next - len(bytes)` greater than `offset`: the
        bytes between were rotated away.
        """
        data = self._read_held(offset, limit)
        if data:
            return data, offset + len(data)
        for _ in range(_ROTATION_RETRIES):
            try:
                return self._read_from_disk(offset, limit)
            except FileNotFoundError:
                continue  # rotated away between listing and opening
        return b"", offset

    async def wait_beyond(self, offset: int) -> None:
        """Wait until there are bytes behind `offset` or the attempt has ended."""
        while not self._settled(offset):
            # Armed before the second look: what is written between look and wait still wakes us.
            with self._watch.armed(self._directory) as changed:
                if not self._settled(offset):
                    await changed

    def tail_offset(self, lines: int) -> int:
        """Offset of the first of the last `lines` lines (an unfinished last line counts as one)."""
        end = self.end_offset
        floor = max(self.start_offset, end - TAIL_SCAN_BYTES_MAX)
        if lines <= 0:
            return end
        missing, at = lines + 1, end
        while at > floor:
            begin = max(floor, at - _TAIL_BLOCK_BYTES)
            block = self._read_exactly(begin, at - begin)
            if at == end and not block.endswith(b"\n"):
                missing -= 1
            position = len(block)
            while missing > 0 and position > 0 and (position := block.rfind(b"\n", 0, position)) >= 0:
                missing -= 1
                if missing == 0:
                    # Counted from the block's end: rotation may have eaten its beginning.
                    return at - len(block) + position + 1
            at = begin
        return floor

    def close(self) -> None:
        """Give the held segment back."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._fd_start = -1, -1

    def __enter__(self) -> "JobLog":
        """Use it in a `with` so that its segment is given back."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def _settled(self, offset: int) -> bool:
        # `ended` is asked first: once it is true the size cannot grow any more.
        return self._ended() or self.end_offset > offset

    def _starts(self) -> list[int]:
        try:
            names = os.listdir(self._directory)  # noqa: PTH208 - names only, no Path per entry
        except FileNotFoundError:
            return []
        return sorted(int(name[len(SEGMENT_PREFIX) :]) for name in names if _is_segment(name))

    def _path(self, start: int) -> Path:
        return self._directory / f"{SEGMENT_PREFIX}{start:016d}"

    def _read_from_disk(self, offset: int, limit: int) -> tuple[bytes, int]:
        """Read from the segment that holds `offset`, else from the next one; raises FileNotFoundError when it raced."""
        starts = self._starts()
        first = max((at for at, start in enumerate(starts) if start <= offset), default=0)
        for start in starts[first : first + 2]:
            # A later segment was listed, so an earlier one is complete: nothing there means that it ends before us.
            offset = max(offset, start)
            self._hold(start)
            data = self._read_held(offset, limit)
            if data:
                return data, offset + len(data)
        return b"", offset

    def _hold(self, start: int) -> None:
        if self._fd_start == start:
            return
        fd = os.open(self._path(start), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        self.close()
        self._fd, self._fd_start = fd, start

    def _read_held(self, offset: int, limit: int) -> bytes:
        if self._fd < 0 or offset < self._fd_start:
            return b""
        return os.pread(self._fd, limit, offset - self._fd_start)

    def _read_exactly(self, offset: int, count: int) -> bytes:
        parts: list[bytes] = []
        while count > 0:
            data, following = self.read(offset, count)
            if not data:
                break
            parts.append(data)
            count -= following - offset
            offset = following
        return b"".join(parts)


def _is_segment(name: str) -> bool:
    return name.startswith(SEGMENT_PREFIX) and name[len(SEGMENT_PREFIX) :].isdigit()
