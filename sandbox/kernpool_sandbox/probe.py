"""Tries each thing that a sandbox needs, in a child of its own, and prints what the kernel said.

`python -m kernpool_sandbox.probe DIRECTORY` prints {"name": "" or the kernel's reason, ...} as JSON. Nothing stays
behind: each try ends with its process and namespaces. `isolation.py` makes sentences of the answers.
"""

import ctypes
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

CLONE_NEWNS = 0x0002_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000
MS_REC = 0x4000
MS_PRIVATE = 0x4_0000
AT_EMPTY_PATH = 0x1000
OPEN_TREE_CLONE = 1
MOUNT_ATTR_IDMAP = 0x0010_0000
SYS_OPEN_TREE = 428
SYS_MOUNT_SETATTR = 442
RANGE_START = 0x4000_0000

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def _mount(kind: str, target: str, flags: int = 0, options: str = "") -> None:
    text = options.encode() if options else None
    _check(_libc.mount(kind.encode(), target.encode(), kind.encode(), flags, text), f"mounting {kind}")


def _map_self(uid: int, gid: int) -> None:
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


def _own_mounts(flags: int = 0) -> None:
    uid, gid = os.geteuid(), os.getegid()
    _unshare(CLONE_NEWUSER | CLONE_NEWNS | flags)
    _map_self(uid, gid)
    _check(_libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None), "making mounts private")


def userns(_directory: str) -> None:
    """A user namespace."""
    _unshare(CLONE_NEWUSER)


def mounts(directory: str) -> None:
    """A mount in a user namespace."""
    _own_mounts()
    _mount("tmpfs", directory)


def overlay(directory: str) -> None:
    """An overlay in a user namespace."""
    _own_mounts()
    _mount("tmpfs", directory)
    for name in ("lower", "upper", "work", "merged"):
        Path(directory, name).mkdir()
    options = f"lowerdir={directory}/lower,upperdir={directory}/upper,workdir={directory}/work,userxattr"
    _mount("overlay", f"{directory}/merged", options=options)


def proc(directory: str) -> None:
    """A fresh /proc in a new pid namespace."""
    _own_mounts(CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS)
    _in_child(lambda: _mount("proc", directory))


def netns(_directory: str) -> None:
    """A network namespace."""
    _unshare(CLONE_NEWUSER | CLONE_NEWNET)


def idmap(directory: str) -> None:
    """An idmapped view of the state directory's filesystem, and of /usr."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        _exit_with(lambda: _hold_userns(reader))
    os.close(reader)
    try:
        _wait_for_other_userns(child)
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{child}/{name}").write_text(f"0 {RANGE_START} 65536")
        namespace = os.open(f"/proc/{child}/ns/user", os.O_RDONLY)
        for path in (directory, "/usr"):
            _idmapped(path, namespace)
    finally:
        os.close(writer)
        os.waitpid(child, 0)


def _hold_userns(reader: int) -> None:
    _unshare(CLONE_NEWUSER)
    os.read(reader, 1)  # until the parent is through


def _idmapped(path: str, namespace: int) -> None:
    tree = _check(
        _libc.syscall(SYS_OPEN_TREE, -100, path.encode(), OPEN_TREE_CLONE | os.O_CLOEXEC), f"open_tree {path}"
    )
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_IDMAP, 0, 0, namespace)
    result = _libc.syscall(SYS_MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH, attributes, ctypes.sizeof(attributes))
    _check(result, f"idmapping {path}")


def _wait_for_other_userns(child: int) -> None:
    own = Path("/proc/self/ns/user").readlink()
    for _ in range(10_000):
        if Path(f"/proc/{child}/ns/user").readlink() != own:
            return
        os.sched_yield()
    raise TimeoutError("a child could not enter a user namespace")


def _in_child(action: Callable[[], object]) -> None:
    """Do something in a forked child; raise what it raised."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _exit_with(action, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        message = pipe.read().decode(errors="replace")
    os.waitpid(child, 0)
    if message:
        raise OSError(message)


def _exit_with(action: Callable[[], object], report_fd: int = -1) -> None:
    try:
        action()
    except OSError as error:
        if report_fd >= 0:
            os.write(report_fd, (error.strerror or str(error)).encode())
    finally:
        os._exit(0)


TRIES: tuple[Callable[[str], None], ...] = (userns, mounts, overlay, proc, netns, idmap)


def probe(directory: str) -> dict[str, str]:
    """Try everything and return the kernel's reason for each thing that failed, an empty text for what works."""
    results = {}
    for attempt in TRIES:
        try:
            _in_child(lambda attempt=attempt: attempt(directory))  # type: ignore[misc]
            results[attempt.__name__] = ""
        except OSError as error:
            results[attempt.__name__] = error.strerror or str(error)
    return results


def main() -> int:
    """Probe below the given directory, which must exist."""
    if platform.system() != "Linux":
        sys.stderr.write("sandboxes need Linux\n")
        return 1
    with tempfile.TemporaryDirectory(dir=sys.argv[1], prefix="probe-") as directory:
        sys.stdout.write(json.dumps(probe(directory)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
