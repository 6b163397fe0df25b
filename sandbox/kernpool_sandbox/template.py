"""Makes the plan of a sandbox from a template: which mounts in which order, which limits, which key its pool has."""

import hashlib
import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

from kernpool_mesh.messages import Limits, Template
from kernpool_sandbox import skeleton
from kernpool_sandbox.errors import TemplateError
from kernpool_sandbox.hostimage import HostImage
from kernpool_sandbox.isolation import NodeIsolation
from kernpool_sandbox.kpinit.plan import (
    Bind,
    Dev,
    Dir,
    File,
    Mask,
    MountOp,
    Overlay,
    Proc,
    ReadOnly,
    Rlimit,
    SandboxPlan,
    Staging,
    Symlink,
    Tmpfs,
)
from kernpool_sandbox.skeleton import USER_UID
from kernpool_sandbox.uids import RANGE_UIDS

PARKED_TTL_S = 24 * 3600.0
"""A parked sandbox that nobody ever claims ends after this, whatever its agent forgot."""
MEMORY_MIB_MIN = 4
PIDS_MIN = 4
OPEN_FILES_MAX = 65_536

MASKED = (
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/sysrq-trigger",
    "/proc/timer_list",
)
"""Hidden where others than the node's root may open them at all: a sandbox's root is never the node's."""
READ_ONLY = ("/proc/sys",)
"""What else can be written in /proc (bus, fs, irq) belongs to the node's root, so the kernel itself refuses it."""

_INLINE_BYTES_MAX = 4096
_INLINE_TOTAL_MAX = 48 * 1024


@final
@dataclass(frozen=True, slots=True)
class RootfsImage:
    """A root filesystem directory that is ready to be mounted."""

    digest: str
    root: str
    top: frozenset[str]
    """Names in it, so that the plan knows what must be made."""


@final
@dataclass(frozen=True, slots=True)
class PlannedTemplate:
    """A template with all that is needed to make sandboxes of it, one as the other."""

    key: str
    """Equal keys make equal sandboxes: they share a parked pool. Ends with the image's digest."""
    limits: Limits
    """With the node's defaults filled in."""
    ops: tuple[MountOp, ...]
    allow_setuid: bool
    rlimits: tuple[Rlimit, ...]

    def plan(self, uid_start: int, cgroups: tuple[str, ...]) -> SandboxPlan:
        """Return the plan of one sandbox; its mounts are those of the template that the spawner knows by the key."""
        return SandboxPlan(
            ops=(),
            uid_map_start=max(0, uid_start),
            uid_map_count=RANGE_UIDS if uid_start >= 0 else 0,
            hostname=skeleton.HOSTNAME,
            cgroups=cgroups,
            parked_ttl_s=PARKED_TTL_S,
            netns=True,
            seccomp=True,
            allow_setuid=self.allow_setuid,
            rlimits=self.rlimits,
        )


def check(template: Template, isolation: NodeIsolation) -> None:
    """Refuse what this node cannot give; raises TemplateError or IsolationError."""
    isolation.require()
    limits = template.limits
    if min(limits.cpu_millis, limits.memory_mib, limits.disk_mib, limits.pids) < 0:
        raise TemplateError(f"limits cannot be negative: {limits}")
    if 0 < limits.memory_mib < MEMORY_MIB_MIN:
        raise TemplateError(
            f"memory of {limits.memory_mib} MiB is too little for any sandbox; use {MEMORY_MIB_MIN} or more"
        )
    if 0 < limits.pids < PIDS_MIN:
        raise TemplateError(f"{limits.pids} processes are too few for any sandbox; use {PIDS_MIN} or more")
    if template.network != "none":
        raise TemplateError(f"network {template.network!r} is not built: only `none` is")
    if template.allow_setuid and template.image == "host":
        raise TemplateError("allow_setuid needs an image of its own: the host's setuid programs never count inside")


def plan_template(
    template: Template, limits: Limits, image: HostImage | RootfsImage, isolation: NodeIsolation
) -> PlannedTemplate:
    """Make the plan of a checked template; `limits` have the node's defaults filled in. TemplateError."""
    if isinstance(image, HostImage):
        ops = _host_ops(image, limits, isolation)
    else:
        ops = _rootfs_ops(image, limits, isolation, nosuid=not template.allow_setuid)
    rlimits = _rlimits(limits, isolation)
    what = repr((ops, limits.cpu_millis, limits.memory_mib, limits.pids, rlimits, template.allow_setuid))
    key = f"{hashlib.sha256(what.encode()).hexdigest()[:16]}.{image.digest}"
    return PlannedTemplate(key, limits, ops, template.allow_setuid, rlimits)


def image_digest(key: str) -> str:
    """Return the digest of the image from which the sandboxes of a key are made."""
    return key.partition(".")[2]


def _staging(limits: Limits) -> Staging:
    return Staging(limits.disk_mib << 20)


def _host_ops(image: HostImage, limits: Limits, isolation: NodeIsolation) -> tuple[MountOp, ...]:
    mapped = isolation.idmap and isolation.overlay
    roots_own = image.owner == 0 if isolation.uids == "range" else True  # single: the only id inside is the maker's
    if isolation.overlay and roots_own and (mapped or isolation.uids == "single"):
        base: list[MountOp] = [Overlay("/", (image.skeleton,), idmap=mapped)]
    else:
        base = list(_skeleton_ops(Path(image.skeleton), home_owner=USER_UID if isolation.uids == "range" else 0))
    for tree in image.trees:
        if mapped:
            base.append(Overlay(tree.source, (tree.hide_layer, tree.source), idmap=True))
        else:
            base.append(Bind(tree.source, tree.source))
    if image.has_local and not mapped:
        base.append(Tmpfs("/usr/local", limits.disk_mib << 20))
        base.extend(Dir(f"/usr/local/{name}") for name in ("bin", "lib", "share"))
    return (_staging(limits), *base, *_kernel_ops())


def _rootfs_ops(image: RootfsImage, limits: Limits, isolation: NodeIsolation, *, nosuid: bool) -> tuple[MountOp, ...]:
    if not isolation.overlay:
        raise TemplateError("an image by path needs an overlay in a user namespace (kernel 5.11); this node has none")
    if isolation.uids == "range" and not isolation.idmap:
        raise TemplateError(
            "an image by path needs idmapped mounts (kernel 5.19 and a filesystem that knows them) on a node that runs"
            " as root; put the agent's state on ext4, xfs or btrfs"
        )
    dirs = tuple(
        Dir(f"/{name}", mode) for name, mode in (("proc", 0o555), ("dev", 0o755), ("tmp", 0o1777), ("run", 0o755))
    )
    missing = tuple(op for op in dirs if op.target[1:] not in image.top)
    etc = (
        File("/etc/hostname", 0o644, f"{skeleton.HOSTNAME}\n".encode()),
        File("/etc/hosts", 0o644, skeleton.MADE_UP_IN_ETC["hosts"].encode()),
        File("/etc/resolv.conf", 0o644, skeleton.RESOLV_CONF.encode()),
    )
    root = Overlay("/", (image.root,), idmap=isolation.idmap, nosuid=nosuid)
    return (_staging(limits), root, *missing, *etc, *_kernel_ops())


def _kernel_ops() -> tuple[MountOp, ...]:
    masks = (Mask(path) for path in MASKED if _open_to_others(path))
    return (Proc(), Dev(), *masks, *(ReadOnly(path) for path in READ_ONLY if os.path.lexists(path)))


def _open_to_others(path: str) -> bool:
    try:
        return bool(os.lstat(path).st_mode & 0o007)
    except OSError:
        return False


def _skeleton_ops(root: Path, home_owner: int) -> Iterator[MountOp]:
    """Make the skeleton by single operations, where it cannot be mounted: small files copied, large things bound.

    What lies in directories below /etc is the host's own and is bound as a whole: a plan has room for few operations.
    """
    left_bytes = _INLINE_TOTAL_MAX
    waiting = [root]
    while waiting:
        directory = waiting.pop(0)
        for path in sorted(directory.iterdir()):
            target = f"/{path.relative_to(root)}"
            info = path.lstat()
            if path.is_symlink():
                yield Symlink(target, str(path.readlink()))
            elif path.is_dir() and directory.name == "etc":
                yield Bind(str(path), target)
            elif path.is_dir():
                yield Dir(target, info.st_mode & 0o7777, home_owner if directory.name == "home" else 0)
                waiting.append(path)
            elif info.st_size <= min(_INLINE_BYTES_MAX, left_bytes):
                left_bytes -= info.st_size
                yield File(target, info.st_mode & 0o777, path.read_bytes())
            else:
                yield Bind(str(path), target)


def _rlimits(limits: Limits, isolation: NodeIsolation) -> tuple[Rlimit, ...]:
    _, open_files_hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    rlimits = [
        Rlimit(resource.RLIMIT_CORE, 0),
        Rlimit(resource.RLIMIT_NOFILE, min(open_files_hard, OPEN_FILES_MAX)),
    ]
    if isolation.limits == "rlimit":
        if limits.memory_mib:
            rlimits.append(Rlimit(resource.RLIMIT_AS, limits.memory_mib << 20))
        if limits.pids:
            rlimits.append(Rlimit(resource.RLIMIT_NPROC, limits.pids))
    return tuple(rlimits)
