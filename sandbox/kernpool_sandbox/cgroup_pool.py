"""Keeps cgroups to be used again: a new one costs 0.2 ms on v1 and leaves a dying memory cgroup behind.

Synchronous; each call does a few file operations of some microseconds. The tree is shared with jobs, whose cgroups have
other names than `c` and a number.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from kernpool_mesh.messages import Limits
from kernpool_sandbox.cgroups import CgroupTree, Usage

SPARES_MAX = 512
_NAME = re.compile(r"c\d+")


@final
@dataclass(frozen=True, slots=True)
class CgroupLease:
    """A cgroup that belongs to one sandbox or job until it is given back."""

    name: str
    paths: tuple[str, ...]
    """What the process joins; empty where no cgroups are."""
    oom_kills_before: int
    """What the kernel's counter said when it was taken; it cannot be reset."""


_Key = tuple[int, int, int]


@final
class CgroupPool:
    """The cgroups of one tree: which are in use, and which are spare with what limits."""

    __slots__ = ("_doomed", "_in_use", "_next", "_spare", "_spares_max", "_spoiled", "tree")

    def __init__(self, tree: CgroupTree, spares_max: int = SPARES_MAX) -> None:
        self.tree = tree
        self._in_use: dict[str, _Key] = {}
        """Taken cgroups and their limits."""
        self._spare: dict[_Key, list[str]] = {}
        """Empty cgroups by the limits that are set in them."""
        self._doomed: set[str] = set()
        """Given back and not to be used again, but the kernel did not let them go yet."""
        self._spoiled: set[str] = set()
        """Taken cgroups whose limits are not what `_in_use` says: adopted ones, and those changed by a kill."""
        self._next = 0
        """Number of the next new name."""
        self._spares_max = spares_max

    def take(self, limits: Limits) -> CgroupLease:
        """Return a cgroup with these limits; OSError when the kernel refuses."""
        if self.tree.kind == "none":
            return CgroupLease("", (), 0)
        key = _key(limits)
        name = self._spare_of(key) or self._other_spare(limits) or self._new(limits)
        self._in_use[name] = key
        return CgroupLease(name, self.tree.paths(name), self.tree.oom_kills(name))

    def adopt(self, name: str) -> None:
        """Take over a cgroup that an earlier agent took; when it is given back it is removed."""
        if name:
            self._in_use[name] = (0, 0, 0)
            self._spoiled.add(name)
            self._skip_past(name)

    def give_back(self, name: str) -> bool:
        """Let it be used again; False while a process is left in it (call again soon). An unknown one is ignored."""
        if name not in self._in_use:
            return True
        if self.tree.pids(name):
            return False
        key = self._in_use.pop(name)
        if name in self._spoiled or self.spares >= self._spares_max or not self.tree.reset(name):
            self._spoiled.discard(name)
            self._doomed.add(name)
            self._remove_doomed()
        else:
            self._spare.setdefault(key, []).append(name)
        return True

    def kill(self, name: str) -> bool:
        """Kill every process in it; True when none is left, else call again soon."""
        if not name:
            return True
        self._spoiled.add(name)
        return self.tree.kill(name)

    def oom_kills(self, name: str) -> int:
        """Return the kernel's count of OOM kills ever in it."""
        return self.tree.oom_kills(name) if name else 0

    def usage(self, name: str) -> Usage:
        """Return what its processes use now."""
        return self.tree.usage(name) if name else Usage()

    def prepare(self, limits: Limits, count: int) -> None:
        """Make spare cgroups ahead until `count` with these limits are there (or the bound is reached)."""
        if self.tree.kind == "none":
            return
        spare = self._spare.setdefault(_key(limits), [])
        while len(spare) < count and self.spares < self._spares_max:
            spare.append(self._new(limits))

    def strangers(self, used: Iterable[str]) -> list[str]:
        """Return cgroups of this tree that exist but are neither spare nor in `used`: what an earlier agent left."""
        known = {*used, *self._in_use, *self._doomed, *(name for names in self._spare.values() for name in names)}
        return sorted(name for name in self.tree.existing() - known if _NAME.fullmatch(name))

    def remove_stranger(self, name: str) -> bool:
        """Kill what is left in a stranger and remove it; False: call again soon."""
        self._skip_past(name)
        return self.tree.kill(name) and self.tree.remove(name)

    def remove_spares(self) -> None:
        """Remove every spare cgroup."""
        self._doomed.update(name for names in self._spare.values() for name in names)
        self._spare.clear()
        self._remove_doomed()

    @property
    def spares(self) -> int:
        """How many stand ready."""
        return sum(map(len, self._spare.values()))

    @property
    def in_use(self) -> int:
        """How many are taken."""
        return len(self._in_use)

    def _remove_doomed(self) -> None:
        self._doomed = {name for name in self._doomed if not self.tree.remove(name)}

    def _spare_of(self, key: _Key) -> str | None:
        names = self._spare.get(key)
        return names.pop() if names else None

    def _other_spare(self, limits: Limits) -> str | None:
        """Writing other limits into a spare one is cheaper than making a new one."""
        for names in self._spare.values():
            if names:
                self.tree.limit(name := names.pop(), limits)
                return name
        return None

    def _new(self, limits: Limits) -> str:
        name = f"c{self._next}"
        self._next += 1
        self.tree.create(name)
        self.tree.limit(name, limits)
        return name

    def _skip_past(self, name: str) -> None:
        if _NAME.fullmatch(name):
            self._next = max(self._next, int(name[1:]) + 1)


def _key(limits: Limits) -> _Key:
    return (limits.cpu_millis, limits.memory_mib, limits.pids)
