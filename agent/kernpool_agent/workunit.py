"""What `kp-agent work` prepares for an agent that may have no rights itself: directories, cgroups, kernel answers.

`kp-agent work` runs as root in kp-work.service (or by hand), the agent as another user. Work's cgroups lie below

    <unit>/spawner            the spawner itself (v2 allows no processes beside divided children)
    <unit>/work-<uid>/        the agent's to divide: it makes a cgroup per sandbox and job and sets its limits

once for each v1 controller, or once in v2. The agent learns the place from the file `cgroup-parent` in the work
directory, and what the kernel grants the spawner from `probe.json`.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

LEAF = "spawner"
PARENT_FILE = "cgroup-parent"
PROBE_FILE = "probe.json"
_CONTROLLERS = ("memory", "cpu", "pids")
_DELEGATED = ("", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads", "tasks")
"""What the owner of a v2 (or v1) sub-tree must be able to write: the directory itself and these files."""


def parent_of_work(work_dir: Path) -> str:
    """Return the cgroup that `kp-agent work` prepared, or "" when work has none of its own."""
    try:
        return (work_dir / PARENT_FILE).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def probed(work_dir: Path) -> dict[str, str] | None:
    """Return the kernel's answers to the spawner's user, or None when `kp-agent work` left none."""
    try:
        answers = json.loads((work_dir / PROBE_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return answers if isinstance(answers, dict) else None


def make_directories(state_dir: Path, work_dir: Path, owner_uid: int) -> int:
    """Make both private directories, the owner's, and return a descriptor of the work directory.

    The owner may be anybody's agent and we may be root: no link of his is followed, and what is given to him was his or
    ours. Raises OSError.
    """
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = _given(os.open(state_dir, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC), owner_uid, state_dir)
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(work_dir.name, 0o700, dir_fd=state)
        flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        return _given(os.open(work_dir.name, flags, dir_fd=state), owner_uid, work_dir)
    finally:
        os.close(state)


def _given(fd: int, owner_uid: int, path: Path) -> int:
    if os.fstat(fd).st_uid not in (owner_uid, os.geteuid()):
        os.close(fd)
        raise PermissionError(f"{path} belongs to neither uid {owner_uid} nor us")
    os.fchown(fd, owner_uid, -1)
    return fd


def prepare(work_fd: int, owner_uid: int, *, unit: str, root: Path = Path("/sys/fs/cgroup")) -> str:
    """Divide our own unit's cgroup, make the agent's part of it, and say where it is (also in the work directory).

    Without a unit and with an agent of our own user nothing is prepared: the agent makes its cgroups where it can, and
    "" is returned. Raises OSError.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(PARENT_FILE, dir_fd=work_fd)
    if not unit and owner_uid == os.geteuid():
        return ""
    if unit:
        _leave_top(root, unit)
    parent = f"{unit}/work-{owner_uid}".lstrip("/")
    for top in _hierarchies(root):
        (top / unit).mkdir(parents=True, exist_ok=True)
        _divide(top / unit)
        (top / parent).mkdir(exist_ok=True)
        hand_over(top / parent, owner_uid)
    _write(work_fd, PARENT_FILE, parent + "\n")
    return parent


def leave_answers(work_fd: int, answers: dict[str, str]) -> None:
    """Write down what the kernel grants us, for the agent. Raises OSError."""
    _write(work_fd, PROBE_FILE, json.dumps(answers) + "\n")


def _write(work_fd: int, name: str, text: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=work_fd)
    # O_EXCL: nothing that the agent put in our way is written to.
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=work_fd)
    with os.fdopen(fd, "w") as file:
        file.write(text)


def hand_over(directory: Path, owner_uid: int) -> None:
    """Let the owner divide this cgroup. Raises OSError."""
    for name in _DELEGATED:
        path = directory / name if name else directory
        if path.exists():
            os.chown(path, owner_uid, -1)


def own_unit(text: str) -> str:
    """Return the path of the systemd unit in a /proc/self/cgroup, without a leading slash; "" outside a unit."""
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        if names in ("", "name=systemd") and (found := re.fullmatch(r"/(.*\.service)(/.*)?", path)):
            return found.group(1)
    return ""


def _leave_top(root: Path, unit: str) -> None:
    for top in (root, root / "unified", root / "systemd"):
        directory = top / unit
        if (directory / "cgroup.procs").exists():
            (directory / LEAF).mkdir(exist_ok=True)
            (directory / LEAF / "cgroup.procs").write_text("0", encoding="ascii")


def _hierarchies(root: Path) -> Iterator[Path]:
    """Yield the roots in which work's cgroups lie: of each v1 controller that we need, or the one of v2."""
    v1 = [root / controller for controller in _CONTROLLERS]
    if all(path.is_dir() for path in v1):
        yield from v1
    else:
        yield root


def _divide(directory: Path) -> None:
    control = directory / "cgroup.subtree_control"
    if control.exists():
        # Already so, or the hybrid hierarchy that has none of them: then v1 has the limits.
        with contextlib.suppress(OSError):
            control.write_text(" ".join(f"+{name}" for name in _CONTROLLERS), encoding="ascii")
