"""What this machine is and has, as its kernel tells it: CPUs, memory and disks within our own affinity and cgroups.

All paths hang below `root`, so that a recorded tree of another machine can be read in tests.
"""

import os
import platform
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, final

MIB = 1 << 20
_REAL_FILESYSTEMS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "overlay"})
"""Local ones only: asking a network filesystem whose server is gone would hang the agent."""
_DISKS_MAX = 64
"""A node with thousands of bind mounts must not grow the inventory beyond a frame."""


@final
@dataclass(frozen=True, slots=True)
class Disk:
    """One mounted filesystem of a disk."""

    mount: str
    source: str
    type: str
    size_mib: int
    free_mib: int


@final
@dataclass(frozen=True, slots=True)
class Machine:
    """One look at the machine."""

    cpu_millis: int
    """What our affinity and cgroups let us use, in thousandths of a CPU."""
    memory_mib: int
    """The machine's memory, or our cgroup's limit where that is lower."""
    disk_mib: int
    """Size of the filesystem that holds the work directory."""
    cgroup: str
    """v1, v2 or none: where the limits of our work would be set."""
    facts: dict[str, Any] = field(default_factory=dict)
    disks: tuple[Disk, ...] = ()


def look(work_dir: Path, root: Path = Path("/")) -> Machine:
    """Read the machine; what cannot be read is left out or counted as unlimited."""
    cgroups = _own_cgroups(root)
    return Machine(
        cpu_millis=min(1000 * len(os.sched_getaffinity(0)), *_cpu_quotas(cgroups), 1 << 40),
        memory_mib=min(_memory_total(root), *_memory_limits(cgroups), 1 << 60) // MIB,
        disk_mib=_disk_size(work_dir)[0],
        cgroup=_cgroup_version(cgroups),
        facts=_facts(root),
        disks=tuple(_disks(root)),
    )


def disk_free_mib(path: Path) -> int:
    """Return what an ordinary user can still write where `path` lies (or will lie)."""
    return _disk_size(path)[1]


def memory_available_mib(root: Path = Path("/")) -> int:
    """Return what the kernel thinks can be used without swapping."""
    return _meminfo(root).get("MemAvailable", 0) // MIB


def addresses() -> list[str]:
    """Return the addresses of this machine's interfaces that others may reach, IPv4 first; loopback when alone."""
    import psutil

    found = [
        ip_address(entry.address.partition("%")[0])
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family in (socket.AF_INET, socket.AF_INET6) and not name.startswith(("docker", "veth", "br-", "virbr"))
    ]
    usable = [a for a in found if not (a.is_loopback or a.is_link_local or a.is_unspecified or a.is_multicast)]
    return [str(a) for a in sorted(set(usable), key=lambda a: (a.version, int(a)))] or ["127.0.0.1"]


# --- cgroups ---


@final
@dataclass(frozen=True, slots=True)
class _Cgroup:
    """One of our own cgroups with all that stand above it."""

    version: int
    controllers: frozenset[str]
    chain: tuple[Path, ...]
    """Directories from ours up to the root of the mount: a limit in any of them holds."""


def _own_cgroups(root: Path) -> list[_Cgroup]:
    mounts = list(_cgroup_mounts(root))
    found = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        controllers = frozenset(filter(None, names.split(",")))
        for version, mount_root, mount, mounted in mounts:
            if (version == 2) == (not controllers) and controllers <= mounted:
                top = root / mount.lstrip("/")
                chain = _chain(top, path, mount_root)
                available = controllers or frozenset(_text(chain[0] / "cgroup.controllers").split())
                found.append(_Cgroup(version, available, chain))
                break
    return found


def _cgroup_mounts(root: Path) -> Iterator[tuple[int, str, str, frozenset[str]]]:
    for line in _text(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        fields, kinds = left.split(), right.split()
        if kinds and kinds[0] == "cgroup2":
            yield 2, fields[3], fields[4], frozenset()
        elif kinds and kinds[0] == "cgroup":
            yield 1, fields[3], fields[4], frozenset(kinds[2].split(","))


def _chain(top: Path, path: str, mount_root: str) -> tuple[Path, ...]:
    # In a container the mount may show a part of the hierarchy only, whose root is our own cgroup's path.
    if mount_root not in ("/", "") and path.startswith(mount_root):
        path = path[len(mount_root) :]
    parts = [part for part in path.split("/") if part not in ("", "..")]
    chain = [top.joinpath(*parts[:length]) for length in range(len(parts), -1, -1)]
    return tuple(directory for directory in chain if directory.is_dir()) or (top,)


def _cgroup_version(cgroups: list[_Cgroup]) -> str:
    holders = [group.version for group in cgroups if "memory" in group.controllers]
    return f"v{holders[0]}" if holders else "none"


def _cpu_quotas(cgroups: list[_Cgroup]) -> Iterator[int]:
    for group in cgroups:
        if "cpu" not in group.controllers:
            continue
        for directory in group.chain:
            if group.version == 2:
                quota, _, period = _text(directory / "cpu.max").partition(" ")
            else:
                quota, period = _text(directory / "cpu.cfs_quota_us"), _text(directory / "cpu.cfs_period_us")
            if quota.strip().isdecimal() and period.strip().isdecimal():
                yield max(1, 1000 * int(quota) // int(period))


def _memory_limits(cgroups: list[_Cgroup]) -> Iterator[int]:
    for group in cgroups:
        if "memory" not in group.controllers:
            continue
        name = "memory.max" if group.version == 2 else "memory.limit_in_bytes"
        for directory in group.chain:
            limit = _text(directory / name).strip()
            if limit.isdecimal():
                yield int(limit)


# --- memory, disks, words ---


def _memory_total(root: Path) -> int:
    return _meminfo(root).get("MemTotal", 0)


def _meminfo(root: Path) -> dict[str, int]:
    """Return /proc/meminfo in bytes."""
    found = re.findall(r"^(\w+):\s+(\d+) kB$", _text(root / "proc/meminfo"), re.MULTILINE)
    return {name: int(kib) << 10 for name, kib in found}


def _disk_size(path: Path) -> tuple[int, int]:
    """Return (size, free for an ordinary user) in MiB of the filesystem that holds the nearest existing parent."""
    while not path.exists():
        path = path.parent
    status = os.statvfs(path)
    return status.f_blocks * status.f_frsize // MIB, status.f_bavail * status.f_frsize // MIB


def _disks(root: Path) -> Iterator[Disk]:
    seen: set[str] = set()
    for line in _text(root / "proc/self/mounts").splitlines():
        source, mount, kind = line.split(" ")[:3]
        if kind not in _REAL_FILESYSTEMS or source in seen or len(seen) >= _DISKS_MAX:
            continue
        seen.add(source)
        where = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal.group(1), 8)), mount)  # a space comes as \040
        try:
            size, free = _disk_size(root / where.lstrip("/"))
        except OSError:
            continue  # one we may not look at
        yield Disk(where, source, kind, size, free)


def _facts(root: Path) -> dict[str, Any]:
    cpu = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", _text(root / "proc/cpuinfo"), re.MULTILINE)
    name = re.search(r'^PRETTY_NAME="?([^"\n]*)', _text(root / "etc/os-release"), re.MULTILINE)
    return {
        "os": name.group(1) if name else platform.system(),
        "kernel": os.uname().release,
        "arch": os.uname().machine,
        "cpu_model": cpu.group(1).strip() if cpu else "",
        "cpus_online": os.cpu_count() or 0,
        "memory_total_mib": _memory_total(root) // MIB,
        "python": platform.python_version(),
        "boot_id": _text(root / "proc/sys/kernel/random/boot_id").strip(),
        "uid": os.geteuid(),
    }


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
