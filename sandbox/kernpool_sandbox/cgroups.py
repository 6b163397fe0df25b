"""cgroup v1 and v2 behind one interface: make and limit a cgroup, count what it uses, kill what is in it, remove it.

A tree holds the cgroups of one state directory: `<parent>/kernpool-<tag>/<name>`, in v1 once for each controller. Who
joins is the new process itself (the child of the spawner writes "0" into each of `paths`), which costs nothing; moving
it from outside costs 0.2 ms.
"""

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from kernpool_mesh.messages import Limits
from kernpool_sandbox.sysfiles import read_keyed, read_number, read_text, try_write, write_text

CgroupKind = Literal["v1", "v2", "none"]

CPU_PERIOD_US = 100_000
CPU_QUOTA_MIN_US = 1_000
LEFT_BYTES_MAX = 16 << 20
"""Page cache of files that the last user was the first to read; the next one would have that much less at first."""


@final
@dataclass(frozen=True, slots=True)
class Usage:
    """What the processes of one cgroup use; -1 where the kernel does not say."""

    memory_bytes: int = -1
    memory_peak_bytes: int = -1
    pids: int = -1
    cpu_ms: int = -1


class CgroupTree(ABC):
    """The cgroups of one state directory."""

    kind: CgroupKind
    bases: tuple[Path, ...] = ()
    """The directories that hold the cgroups of this tree."""

    @abstractmethod
    def create(self, name: str) -> None:
        """Make a cgroup without limits; one that is there already is taken as it is. OSError when refused."""

    @abstractmethod
    def limit(self, name: str, limits: Limits) -> None:
        """Set what its processes may use at most; 0 lifts a limit."""

    @abstractmethod
    def reset(self, name: str) -> bool:
        """Make an empty cgroup ready for its next user; False when too much of the last one is charged to it still.

        Dropping that by hand (force_empty, reclaim) blocks for a millisecond or more; removing the cgroup does not.
        """

    @abstractmethod
    def paths(self, name: str) -> tuple[str, ...]:
        """Return the directories that a process must join."""

    @abstractmethod
    def oom_kills(self, name: str) -> int:
        """Return how often the kernel's OOM killer ever struck in it."""

    @abstractmethod
    def usage(self, name: str) -> Usage:
        """Return what its processes use now."""

    @abstractmethod
    def pids(self, name: str) -> list[int]:
        """Return its processes."""

    @abstractmethod
    def kill(self, name: str) -> bool:
        """Send SIGKILL to every process in it and let none fork; True when none is left, else call it again soon.

        Afterwards its limits have to be set anew.
        """

    @abstractmethod
    def remove(self, name: str) -> bool:
        """Remove it; False while processes are left in it. One that is not there counts as removed."""

    @abstractmethod
    def existing(self) -> set[str]:
        """Return the names that exist on this machine, whoever made them."""

    @abstractmethod
    def remove_base(self) -> None:
        """Remove the directory that holds the cgroups, if it is empty."""


@final
class CgroupV1(CgroupTree):
    """One directory in each of the memory, cpu and pids hierarchies."""

    kind = "v1"

    def __init__(self, parents: Mapping[str, Path], tag: str) -> None:
        self._bases = {controller: parent / f"kernpool-{tag}" for controller, parent in parents.items()}
        self.bases = tuple(self._bases.values())
        for base in self.bases:
            base.mkdir(exist_ok=True)
        self._memory = self._bases["memory"]
        self._swap_counted = (self._memory / "memory.memsw.limit_in_bytes").exists()

    def create(self, name: str) -> None:
        """Make its directories."""
        for base in self._bases.values():
            _make(base / name)

    def limit(self, name: str, limits: Limits) -> None:
        """Write its limits."""
        memory = self._memory / name
        limit = limits.memory_mib << 20 if limits.memory_mib else -1
        if self._swap_counted:
            write_text(memory / "memory.memsw.limit_in_bytes", "-1")  # it may never be below memory.limit_in_bytes
        write_text(memory / "memory.limit_in_bytes", str(limit))
        if self._swap_counted:
            write_text(memory / "memory.memsw.limit_in_bytes", str(limit))
        write_text(self._bases["cpu"] / name / "cpu.cfs_quota_us", str(_cpu_quota_us(limits) or -1))
        write_text(self._bases["pids"] / name / "pids.max", str(limits.pids or "max"))

    def reset(self, name: str) -> bool:
        """Look at what its last user left, and begin its peak anew."""
        memory = self._memory / name
        try_write(memory / "memory.max_usage_in_bytes", "0")
        return read_number(memory / "memory.usage_in_bytes") <= LEFT_BYTES_MAX

    def paths(self, name: str) -> tuple[str, ...]:
        """Return its directories."""
        return tuple(f"{base}/{name}" for base in self._bases.values())

    def oom_kills(self, name: str) -> int:
        """Return the kernel's count."""
        return read_keyed(self._memory / name / "memory.oom_control").get("oom_kill", 0)

    def usage(self, name: str) -> Usage:
        """Read its counters."""
        memory = self._memory / name
        cpu_ns = read_number(
            self._bases["cpu"] / name / "cpuacct.usage"
        )  # there only where cpu and cpuacct are one mount
        return Usage(
            read_number(memory / "memory.usage_in_bytes"),
            read_number(memory / "memory.max_usage_in_bytes"),
            read_number(self._bases["pids"] / name / "pids.current"),
            cpu_ns // 1_000_000 if cpu_ns >= 0 else -1,
        )

    def pids(self, name: str) -> list[int]:
        """Return its processes."""
        return _pids(self._bases["pids"] / name)

    def kill(self, name: str) -> bool:
        """Kill its processes once."""
        try_write(self._bases["pids"] / name / "pids.max", "0")  # so that the caller's rounds come to an end
        _kill_members(lambda: self.pids(name))
        return not self.pids(name)

    def remove(self, name: str) -> bool:
        """Remove its directories."""
        removed = [_remove(base / name) for base in self.bases]
        return all(removed)

    def existing(self) -> set[str]:
        """List the directories."""
        return {name for base in self._bases.values() for name in _children(base)}

    def remove_base(self) -> None:
        """Remove the base directories, if empty."""
        for base in self._bases.values():
            _remove(base)


@final
class CgroupV2(CgroupTree):
    """One directory in the unified hierarchy."""

    kind = "v2"

    def __init__(self, parent: Path, tag: str) -> None:
        self._base = parent / f"kernpool-{tag}"
        self.bases = (self._base,)
        self._base.mkdir(exist_ok=True)
        write_text(self._base / "cgroup.subtree_control", "+memory +cpu +pids")

    def create(self, name: str) -> None:
        """Make its directories."""
        _make(self._base / name)

    def limit(self, name: str, limits: Limits) -> None:
        """Write its limits."""
        directory = self._base / name
        quota_us = _cpu_quota_us(limits)
        write_text(directory / "memory.max", str(limits.memory_mib << 20) if limits.memory_mib else "max")
        # Swap would let a sandbox outgrow its limit; a kernel without swap accounting has no such file.
        try_write(directory / "memory.swap.max", "0" if limits.memory_mib else "max")
        write_text(directory / "cpu.max", f"{quota_us or 'max'} {CPU_PERIOD_US}")
        write_text(directory / "pids.max", str(limits.pids or "max"))

    def reset(self, name: str) -> bool:
        """Look at what its last user left."""
        return read_number(self._base / name / "memory.current") <= LEFT_BYTES_MAX

    def paths(self, name: str) -> tuple[str, ...]:
        """Return its directories."""
        return (f"{self._base}/{name}",)

    def oom_kills(self, name: str) -> int:
        """Return the kernel's count."""
        return read_keyed(self._base / name / "memory.events").get("oom_kill", 0)

    def usage(self, name: str) -> Usage:
        """Read its counters."""
        directory = self._base / name
        cpu_us = read_keyed(directory / "cpu.stat").get("usage_usec", -1000)
        return Usage(
            read_number(directory / "memory.current"),
            read_number(directory / "memory.peak"),
            read_number(directory / "pids.current"),
            cpu_us // 1000,
        )

    def pids(self, name: str) -> list[int]:
        """Return its processes."""
        return _pids(self._base / name)

    def kill(self, name: str) -> bool:
        """Kill its processes once."""
        if not try_write(self._base / name / "cgroup.kill", "1"):  # kernels before 5.14
            try_write(self._base / name / "pids.max", "0")
            _kill_members(lambda: self.pids(name))
        return not self.pids(name)

    def remove(self, name: str) -> bool:
        """Remove its directories."""
        return _remove(self._base / name)

    def existing(self) -> set[str]:
        """List the directories."""
        return set(_children(self._base))

    def remove_base(self) -> None:
        """Remove the base directories, if empty."""
        _remove(self._base)


@final
class NoCgroups(CgroupTree):
    """Where no cgroup may be made (ordinary users on v1): limits are rlimits, and nothing is counted."""

    kind = "none"

    def create(self, name: str) -> None:
        """Make nothing."""

    def limit(self, name: str, limits: Limits) -> None:
        """Limit nothing; the plan carries rlimits instead."""

    def reset(self, name: str) -> bool:
        """Reset nothing."""
        return True

    def paths(self, name: str) -> tuple[str, ...]:
        """Return its directories."""
        return ()

    def oom_kills(self, name: str) -> int:
        """Return the kernel's count."""
        return 0

    def usage(self, name: str) -> Usage:
        """Read its counters."""
        return Usage()

    def pids(self, name: str) -> list[int]:
        """Return its processes."""
        return []

    def kill(self, name: str) -> bool:
        """Kill its processes once."""
        return True

    def remove(self, name: str) -> bool:
        """Remove its directories."""
        return True

    def existing(self) -> set[str]:
        """List the directories."""
        return set()

    def remove_base(self) -> None:
        """Remove nothing."""


def _cpu_quota_us(limits: Limits) -> int:
    """Return the quota per period, or 0 for none."""
    return max(CPU_QUOTA_MIN_US, limits.cpu_millis * CPU_PERIOD_US // 1000) if limits.cpu_millis else 0


def _make(path: Path) -> None:
    try:
        path.mkdir()
    except FileExistsError:
        return


def _remove(path: Path) -> bool:
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False  # EBUSY: a process is left, or its exit is not through yet
    return True


def _children(base: Path) -> Iterable[str]:
    try:
        with os.scandir(base) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _pids(directory: Path) -> list[int]:
    return [int(pid) for pid in (read_text(directory / "cgroup.procs") or "").split()]


def _kill_members(members: Callable[[], list[int]]) -> None:
    """Kill the members of a cgroup by pidfd: one seen before and after it was opened is the very process meant."""
    pidfds = {pid: pidfd for pid in members() if (pidfd := _pidfd(pid)) >= 0}
    still = set(members())
    for pid, pidfd in pidfds.items():
        if pid in still:
            _signal(pidfd)
        os.close(pidfd)


def _pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1  # it has ended meanwhile


def _signal(pidfd: int) -> None:
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        return
