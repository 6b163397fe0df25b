"""Finds out where this process may make cgroups, from the mount table and its own place in it, and says why not.

Every path starts at `root`, so that the code also runs on a recorded tree.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from kernpool_sandbox.cgroups import CgroupKind, CgroupTree, CgroupV1, CgroupV2, NoCgroups
from kernpool_sandbox.sysfiles import read_text, try_write

_V1_CONTROLLERS = ("pids", "cpu", "memory")
"""In the order in which a process joins: one that is in any of them is in the first, where we look for it."""
_V2_CONTROLLERS = frozenset({"memory", "cpu", "pids"})


@final
@dataclass(frozen=True, slots=True)
class CgroupFacts:
    """What cgroups this process may make: where, and why not."""

    kind: CgroupKind
    parents: Mapping[str, Path]
    """v1: controller -> directory under which we make ours; v2: {"": directory}; none: empty."""
    problems: tuple[str, ...] = ()


def detect(*, root: Path = Path("/"), parent: str = "") -> CgroupFacts:
    """Return where this process may make cgroups; `parent` names a v2 cgroup (or v1 sub-directory) to use instead."""
    mounts = _cgroup_mounts(read_text(root / "proc/self/mountinfo") or "")
    own = _own_cgroups(read_text(root / "proc/self/cgroup") or "")
    v1 = _detect_v1(root, mounts, parent)
    if v1.kind != "none":
        return v1
    v2 = _detect_v2(root, mounts, own, parent)
    if v2.kind != "none":
        return v2
    if not mounts:
        return CgroupFacts("none", {}, ("no cgroup filesystem is mounted: mount cgroup2 at /sys/fs/cgroup",))
    on_v1 = any("memory" in mount.controllers for mount in mounts if not mount.v2)
    return CgroupFacts("none", {}, v1.problems if on_v1 else v2.problems)


def open_tree(facts: CgroupFacts, tag: str) -> CgroupTree:
    """Return the tree of one state directory; `tag` tells it from those of others. OSError when it cannot be made."""
    match facts.kind:
        case "v1":
            return CgroupV1(facts.parents, tag)
        case "v2":
            return CgroupV2(facts.parents[""], tag)
        case "none":
            return NoCgroups()


@final
@dataclass(frozen=True, slots=True)
class _Mount:
    point: str
    v2: bool
    controllers: frozenset[str]


def _cgroup_mounts(mountinfo: str) -> list[_Mount]:
    mounts = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) >= 6 and len(kind) >= 3 and kind[0] in ("cgroup", "cgroup2"):
            mounts.append(_Mount(fields[4], kind[0] == "cgroup2", frozenset(kind[2].split(","))))
    return mounts


def _own_cgroups(text: str) -> dict[str, str]:
    """Return controller -> path of /proc/self/cgroup; the unified hierarchy has the empty name."""
    own = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        own.update(dict.fromkeys(controllers.split(","), path))
    return own


def _detect_v1(root: Path, mounts: Sequence[_Mount], parent: str) -> CgroupFacts:
    found = {}
    for controller in _V1_CONTROLLERS:
        point = next((mount.point for mount in mounts if not mount.v2 and controller in mount.controllers), None)
        if point is None:
            return CgroupFacts("none", {}, (f"the cgroup v1 controller `{controller}` is not mounted",))
        found[controller] = root / point.lstrip("/") / parent.lstrip("/")
    refused = [str(path) for path in found.values() if not os.access(path, os.W_OK)]
    if refused:
        text = f"cgroups need root here (v1: {', '.join(refused)} cannot be written): limits are rlimits"
        return CgroupFacts("none", {}, (text,))
    return CgroupFacts("v1", found)


def _detect_v2(root: Path, mounts: Sequence[_Mount], own: Mapping[str, str], parent: str) -> CgroupFacts:
    point = next((root / mount.point.lstrip("/") for mount in mounts if mount.v2), None)
    if point is None:
        return CgroupFacts("none", {}, ("no cgroup2 is mounted",))
    missing = _V2_CONTROLLERS - set((read_text(point / "cgroup.controllers") or "").split())
    if missing:
        return CgroupFacts("none", {}, (f"cgroup2 lacks the controllers {', '.join(sorted(missing))}",))
    problems = []
    for candidate in _v2_parents(point, own, parent):
        problem = _divide(candidate)
        if not problem:
            return CgroupFacts("v2", {"": candidate})
        problems.append(problem)
    return CgroupFacts("none", {}, tuple(problems))


def _v2_parents(point: Path, own: Mapping[str, str], parent: str) -> list[Path]:
    """Return where cgroups may be made, best first: where we were told, the top (root), our own (delegated)."""
    if parent:
        return [point / parent.lstrip("/")]
    own_path = point / own.get("", "/").lstrip("/")
    return [point, own_path] if own_path != point else [point]


def _divide(directory: Path) -> str:
    """Let the children of a v2 cgroup have their own limits; return why that cannot be, or an empty string."""
    control = directory / "cgroup.subtree_control"
    if not os.access(directory, os.W_OK) or not os.access(control, os.W_OK):
        return f"{directory} is not delegated to this user: start the agent in a unit with Delegate=yes"
    if set((read_text(control) or "").split()) >= _V2_CONTROLLERS:
        return ""
    if try_write(control, "+memory +cpu +pids"):
        return ""
    _move_own_processes(directory)  # a v2 cgroup that has children with limits may have no processes of its own
    if try_write(control, "+memory +cpu +pids"):
        return ""
    return f"{directory} has processes of others in it, so it cannot be divided: give the agent a cgroup of its own"


def _move_own_processes(directory: Path) -> None:
    """Move this process, and a spawner beside it, into a leaf; only where the whole cgroup was delegated to us."""
    members = (read_text(directory / "cgroup.procs") or "").split()
    if str(os.getpid()) not in members:
        return
    leaf = directory / "kernpool-agent"
    leaf.mkdir(exist_ok=True)
    for pid in members:
        try_write(leaf / "cgroup.procs", pid)
