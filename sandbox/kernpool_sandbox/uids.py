"""Ranges of 65,536 host uids, one for each sandbox: nobody else's, and given again to the next one when it is over."""

from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import final

from kernpool_sandbox.errors import NoCapacityError

RANGE_UIDS = 65_536
UID_BASE = 0x4000_0000
"""Far above what people, directories (LDAP, AD) and subuid files usually hand out."""
UID_END = 0x7FFF_0000
"""Uids above 2^31 are refused by some filesystems and read as negative by some programs."""


@final
class UidRanges:
    """Hands out ranges by index; the lowest that was never used first, then the one that rested longest."""

    __slots__ = ("_base", "_count", "_next", "_reserved", "_resting", "_taken")

    def __init__(self, base: int = UID_BASE, end: int = UID_END, reserved: Iterable[range] = ()) -> None:
        if base % RANGE_UIDS:
            raise ValueError(f"uid_base {base} is not a multiple of {RANGE_UIDS}; use {base - base % RANGE_UIDS}")
        self._base = base
        """First uid of range 0."""
        self._count = (end - base) // RANGE_UIDS
        """How many ranges there are."""
        self._reserved = self._indices(reserved)
        """Ranges in which somebody else's uids lie; never handed out."""
        self._taken: set[int] = set()
        """Ranges in use now."""
        self._resting: deque[int] = deque()
        """Ranges given back, longest ago first."""
        self._next = 0
        """Lowest index that was never handed out."""

    def take(self) -> int:
        """Return the index of a free range; NoCapacityError when none is left."""
        while self._next < self._count:
            index, self._next = self._next, self._next + 1
            if index not in self._taken and index not in self._reserved:
                self._taken.add(index)
                return index
        while self._resting:
            index = self._resting.popleft()
            if index not in self._taken:
                self._taken.add(index)
                return index
        raise NoCapacityError(f"all {self._count} uid ranges from {self._base} are in use; remove some sandboxes first")

    def adopt(self, index: int) -> None:
        """Mark a range as in use by a sandbox that an earlier agent made."""
        self._taken.add(index)

    def give_back(self, index: int) -> None:
        """Let another sandbox have this range; one that is not taken is ignored."""
        if index in self._taken:
            self._taken.discard(index)
            self._resting.append(index)

    def start(self, index: int) -> int:
        """Return the first host uid of range `index`."""
        return self._base + index * RANGE_UIDS

    @property
    def in_use(self) -> int:
        """How many ranges are taken."""
        return len(self._taken)

    def _indices(self, reserved: Iterable[range]) -> frozenset[int]:
        end = self._base + self._count * RANGE_UIDS
        return frozenset(
            index
            for ids in reserved
            for index in range(
                (max(ids.start, self._base) - self._base) // RANGE_UIDS,
                -((self._base - min(ids.stop, end)) // RANGE_UIDS),
            )
        )


def reserved_on_host(etc: Path = Path("/etc")) -> list[range]:
    """Return the uids and gids that the host's own files give to others: passwd, group, subuid, subgid."""
    return [
        *_ids(etc / "passwd", first=2, count=None),
        *_ids(etc / "group", first=2, count=None),
        *_ids(etc / "subuid", first=1, count=2),
        *_ids(etc / "subgid", first=1, count=2),
    ]


def subordinate_range(names: Iterable[str], file: Path) -> range | None:
    """Return the first range of at least 65,536 ids that a subuid or subgid file gives to one of `names`."""
    wanted = set(names)
    for fields in _fields(file):
        if fields[0] in wanted and len(fields) == 3 and fields[2].isdigit() and int(fields[2]) >= RANGE_UIDS:
            return range(int(fields[1]), int(fields[1]) + int(fields[2]))
    return None


def _ids(file: Path, first: int, count: int | None) -> list[range]:
    found = []
    for fields in _fields(file):
        numbers = (
            [fields[first], "1" if count is None else fields[count]] if len(fields) > max(first, count or 0) else []
        )
        if numbers and all(number.isdigit() for number in numbers):
            found.append(range(int(numbers[0]), int(numbers[0]) + int(numbers[1])))
    return found


def _fields(file: Path) -> list[list[str]]:
    try:
        text = file.read_text(errors="replace")
    except OSError:
        return []  # a node without subuid files has no subordinate ids; that is not an error
    return [line.strip().split(":") for line in text.splitlines() if line.strip() and not line.startswith("#")]
