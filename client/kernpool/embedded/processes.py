"""Processes found by their pid files and held by pidfds: never by name, never the wrong one after a pid was reused."""

import contextlib
import itertools
import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self, final

PID_FILE_BYTES_MAX: Final = 64
CMDLINE_BYTES_MAX: Final = 64 * 1024


@final
class Process:
    """A live process; owns its pidfd."""

    __slots__ = ("_pidfd", "pid")

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self._pidfd = pidfd

    @classmethod
    def hold(cls, pid: int) -> "Process | None":
        """Hold the process with this pid; None when there is none."""
        try:
            process = cls(pid, os.pidfd_open(pid))
        except (OSError, OverflowError):
            return None
        if process.has_ended:
            process.close()
            return None
        return process

    @property
    def has_ended(self) -> bool:
        """It has exited (its parent may not have taken its status yet)."""
        return self.wait(0.0)

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; False when it goes on after that time."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(max(0.0, timeout_s) * 1000))

    def signal(self, number: int) -> None:
        """Send it a signal; one that has ended already is no error."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def end(self, grace_s: float) -> bool:
        """SIGTERM, then SIGKILL after the grace period; True when SIGTERM was enough. Raises PermissionError."""
        self.signal(signal.SIGTERM)
        if self.wait(grace_s):
            return True
        self.signal(signal.SIGKILL)
        self.wait(10.0)
        return False

    def close(self) -> None:
        """Let go of it."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def daemon(state_dir: Path, pid_file: str) -> Process | None:
    """Find the daemon of a state directory; None when it does not run.

    The pid file alone proves nothing after a crash and a reused pid: the process must also have been started for this
    very directory.
    """
    try:
        text = (state_dir / pid_file).read_bytes()[:PID_FILE_BYTES_MAX].strip()
    except OSError:
        return None
    if not text.isdigit():
        return None
    process = Process.hold(int(text))
    if process is None:
        return None
    path = os.fsencode(state_dir)
    if any(word in (path, b"--state-dir=" + path) for word in command_line(process.pid)):
        return process
    process.close()
    return None


def daemons(state_dir: Path, module: str) -> list[Process]:
    """Find by their command lines the daemons of a state directory, also one so young that it has no pid file yet."""
    words = (os.fsencode(module), b"--state-dir=" + os.fsencode(state_dir))
    pids = [pid for pid, _ in _parents() if words in itertools.pairwise(command_line(pid))]
    return [process for pid in pids if (process := Process.hold(pid)) is not None]


def command_line(pid: int) -> list[bytes]:
    """Give a process's arguments; empty when they cannot be read."""
    try:
        with Path(f"/proc/{pid}/cmdline").open("rb") as file:
            return file.read(CMDLINE_BYTES_MAX).split(b"\0")
    except OSError:
        return []


def work_processes(work_dir: Path) -> list[Process]:
    """Find the kp-init processes of a work directory (its path is a word of their command line) and all below them.

    The spawner comes first, so that nothing new is made while the others are ended.
    """
    path = os.fsencode(work_dir)
    parents = dict(_parents())
    own = sorted(pid for pid in parents if path in command_line(pid) and pid != os.getpid())
    found = dict.fromkeys(sorted(own, key=lambda pid: parents[pid] in own))
    for pid in parents:
        if pid not in found and any(ancestor in found for ancestor in _ancestors(pid, parents)):
            found[pid] = None
    return [process for pid in found if (process := Process.hold(pid)) is not None]


def _parents() -> Iterator[tuple[int, int]]:
    """Give (pid, parent's pid) of every process."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # The name in parentheses may hold anything, also spaces and parentheses.
                yield int(entry.name), int((entry / "stat").read_text().rpartition(")")[2].split()[1])


def _ancestors(pid: int, parents: dict[int, int]) -> Iterator[int]:
    for _ in range(len(parents)):
        pid = parents.get(pid, 0)
        if pid <= 1:
            return
        yield pid


def port_owner(port: int) -> str:
    """Name who listens on a TCP port of this machine: `process 12 (python3)`, or `another process`."""
    inodes = set(_listening_inodes(port))
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and inodes & set(_socket_inodes(entry)):
            with contextlib.suppress(OSError):
                return f"process {entry.name} ({(entry / 'comm').read_text().strip()})"
    return "another process"


def _listening_inodes(port: int) -> Iterator[str]:
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
                parts = line.split()
                if parts[3] == "0A" and int(parts[1].rsplit(":", 1)[1], 16) == port:
                    yield parts[9]


def _socket_inodes(entry: Path) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for link in (entry / "fd").iterdir():
            with contextlib.suppress(OSError):
                target = str(link.readlink())
                if target.startswith("socket:["):
                    yield target[8:-1]


def child_environment() -> dict[str, str]:
    """Give our environment to a Python of ours that starts in another directory, without our API credentials."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("KERNPOOL_API_")}
    if path := env.get("PYTHONPATH"):
        env["PYTHONPATH"] = os.pathsep.join(str(Path(part).absolute()) for part in path.split(os.pathsep) if part)
    return env


def poll_until(deadline_s: float, *, first_s: float = 0.01, longest_s: float = 0.1) -> Iterator[None]:
    """Give turns with growing pauses between them until the deadline (time.monotonic)."""
    pause_s = first_s
    yield
    while time.monotonic() < deadline_s:
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, longest_s)
        yield
