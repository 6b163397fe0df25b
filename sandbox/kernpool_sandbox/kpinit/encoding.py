"""Plans and specs as the bytes of requests, and answers as records."""

import struct
from collections.abc import Iterable
from typing import Final, assert_never

from kernpool_sandbox.kpinit.errors import ProtocolError
from kernpool_sandbox.kpinit.plan import (
    Bind,
    Dev,
    Dir,
    ExecCause,
    ExecRow,
    ExecSpec,
    File,
    FileSpec,
    JobPlan,
    Mask,
    MountOp,
    Overlay,
    Proc,
    ReadOnly,
    Rlimit,
    SandboxPlan,
    Staging,
    Symlink,
    Sysfs,
    Tmpfs,
    Usage,
)
from kernpool_sandbox.kpinit.wire import (
    Frame,
    Tag,
    c_string,
    put_bytes,
    put_env,
    put_str,
    put_strs,
    put_u32,
    put_u64,
)

_MOUNT: Final = struct.Struct("<IIIQ")
_ROW: Final = struct.Struct("<iiiIIIQQQ")
_USAGE: Final = struct.Struct("<QQQ")
_STREAM: Final = struct.Struct("<IIQQQ")

_RDONLY, _NOSUID, _NODEV, _NOEXEC, _IDMAP = 1, 2, 4, 8, 16
_PLAN_NETNS, _PLAN_SECCOMP, _PLAN_ALLOW_SETUID = 1, 2, 4
_EXEC_STDIN = 1
_FILE_PARENTS, _FILE_RECURSIVE = 1, 2


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))


def _flags(*pairs: tuple[bool, int]) -> int:
    return sum(bit for wanted, bit in pairs if wanted)


def _mount(kind: int, target: str, rest: bytes = b"", *, flags: int = 0, mode: int = 0, size: int = 0) -> bytes:
    return put_bytes(Tag.MOUNT, _MOUNT.pack(kind, flags, mode, size) + c_string(target) + rest)


def encode_mount(op: MountOp) -> bytes:  # noqa: C901 - one line per kind
    """Encode one mount operation."""
    match op:
        case Staging(size_bytes):
            return _mount(1, "", size=size_bytes)
        case Tmpfs(target, size_bytes, mode):
            return _mount(2, target, size=size_bytes, mode=mode)
        case Dir(target, mode, owner):
            return _mount(3, target, mode=mode, size=owner)
        case Symlink(target, to):
            return _mount(4, target, c_string(to))
        case File(target, mode, data):
            return _mount(5, target, data, mode=mode)
        case Bind():
            flags = _flags(
                (op.read_only, _RDONLY),
                (op.nosuid, _NOSUID),
                (op.nodev, _NODEV),
                (op.noexec, _NOEXEC),
                (op.idmap, _IDMAP),
            )
            return _mount(6, op.target, c_string(op.source), flags=flags)
        case Overlay():
            flags = _flags((op.nosuid, _NOSUID), (op.nodev, _NODEV), (op.idmap, _IDMAP))
            return _mount(7, op.target, b"".join(map(c_string, op.lowers)), flags=flags)
        case Proc(target):
            return _mount(8, target)
        case Dev(target, shm_bytes):
            return _mount(9, target, size=shm_bytes)
        case Sysfs(target):
            return _mount(10, target)
        case Mask(target):
            return _mount(11, target)
        case ReadOnly(target):
            return _mount(12, target)
        case _:
            assert_never(op)


def encode_mounts(ops: Iterable[MountOp]) -> bytes:
    """Encode mount operations in order."""
    return b"".join(map(encode_mount, ops))


def _encode_rlimits(rlimits: Iterable[Rlimit]) -> bytes:
    return b"".join(put_bytes(Tag.RLIMIT, struct.pack("<IQ", limit.resource, limit.value)) for limit in rlimits)


def encode_sandbox(sandbox_id: str, plan: SandboxPlan, template: str) -> bytes:
    """Encode the body of a SPAWN request."""
    flags = _flags((plan.netns, _PLAN_NETNS), (plan.seccomp, _PLAN_SECCOMP), (plan.allow_setuid, _PLAN_ALLOW_SETUID))
    return b"".join(
        (
            put_str(Tag.ID, sandbox_id),
            put_str(Tag.TEMPLATE, template) if template else b"",
            put_str(Tag.HOSTNAME, plan.hostname),
            put_u64(Tag.UID_START, plan.uid_map_start),
            put_u64(Tag.UID_COUNT, plan.uid_map_count),
            put_u64(Tag.PARKED_TTL_MS, _ms(plan.parked_ttl_s)),
            put_u32(Tag.FLAGS, flags),
            put_strs(Tag.CGROUP, plan.cgroups),
            _encode_rlimits(plan.rlimits),
            encode_mounts(plan.ops),
        )
    )


def encode_job(job_id: str, plan: JobPlan) -> bytes:
    """Encode the body of a SPAWN_JOB request."""
    user = b""
    if plan.user is not None:
        groups = b"".join(put_u32(Tag.GROUP, group) for group in plan.user.groups)
        user = put_u32(Tag.UID, plan.user.uid) + put_u32(Tag.GID, plan.user.gid) + groups
    steps = b"".join(
        put_bytes(
            Tag.STEP, struct.pack("<Q", _ms(step.timeout_s)) + c_string(step.name) + b"".join(map(c_string, step.argv))
        )
        for step in plan.steps
    )
    return b"".join(
        (
            put_str(Tag.ID, job_id),
            put_str(Tag.CWD, plan.cwd or "/"),
            steps,
            user,
            put_u64(Tag.LOG_BYTES_MAX, plan.log_bytes_max),
            put_u64(Tag.SEGMENT_BYTES, min(plan.segment_bytes, plan.log_bytes_max)),
            put_u64(Tag.GRACE_MS, _ms(plan.grace_s)),
            put_u64(Tag.TIMEOUT_MS, _ms(plan.timeout_s)),
            put_strs(Tag.CGROUP, plan.cgroups),
            _encode_rlimits(plan.rlimits),
            put_env(plan.env),
        )
    )


def encode_exec(spec: ExecSpec) -> bytes:
    """Encode the body of an EXEC request."""
    parts = [put_strs(Tag.ARG, spec.argv), put_u64(Tag.RING_BYTES, spec.keep_ring_bytes)]
    if spec.env:
        parts.append(put_env(spec.env))
    if spec.cwd:
        parts.append(put_str(Tag.CWD, spec.cwd))
    if spec.user:
        parts.append(put_str(Tag.USER, spec.user))
    if spec.timeout_s > 0:
        parts.append(put_u64(Tag.TIMEOUT_MS, max(1, _ms(spec.timeout_s))))
    if spec.stdin:
        parts.append(put_u32(Tag.FLAGS, _EXEC_STDIN))
    return b"".join(parts)


def encode_file(spec: FileSpec) -> bytes:
    """Encode the body of a FILE request."""
    return b"".join(
        (
            put_str(Tag.PATH, spec.path),
            put_str(Tag.TO, spec.to) if spec.to else b"",
            put_str(Tag.USER, spec.user) if spec.user else b"",
            put_u64(Tag.OFFSET, spec.offset),
            put_u64(Tag.LIMIT, spec.limit) if spec.limit >= 0 else b"",
            put_u32(Tag.MODE, spec.mode),
            put_u32(Tag.FLAGS, _flags((spec.parents, _FILE_PARENTS), (spec.recursive, _FILE_RECURSIVE))),
            put_u64(Tag.TIMEOUT_MS, max(1, _ms(spec.deadline_s))),
        )
    )


def decode_usage(value: bytes) -> Usage:
    """Decode TAG_USAGE."""
    if len(value) != _USAGE.size:
        raise ProtocolError(f"a usage of {len(value)} bytes")
    return Usage(*_USAGE.unpack(value))


def decode_rows(frame: Frame) -> list[ExecRow]:
    """Decode the answer to a LIST of execs."""
    rows = []
    for tag, value in frame.all_values():
        if tag == Tag.ROW and len(value) >= _ROW.size:
            exec_id, pid, status, running, cause, _, user_us, system_us, rss = _ROW.unpack_from(value)
            usage = Usage(user_us, system_us, rss)
            rows.append(ExecRow(exec_id, pid, bool(running), status, ExecCause(cause), usage))
    return sorted(rows, key=lambda row: row.exec_id)


def decode_streams(frame: Frame) -> list[tuple[int, int, int, int]]:
    """Decode the answer to a REATTACH: (flags, kept, dropped, drained) of stdout and stderr."""
    streams = [_STREAM.unpack_from(value) for tag, value in frame.all_values() if tag == Tag.STREAM]
    if len(streams) != 2:
        raise ProtocolError(f"a re-attach with {len(streams)} streams")
    return [(flags, kept, dropped, drained) for flags, _, kept, dropped, drained in streams]
