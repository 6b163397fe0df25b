"""Processes found by their pid files and held by pidfds: never by name, never the wrong one after a pid was reused."""

import contextlib
import os
import select
import signal
import socket
import struct
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
        except OSError:
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


def command_line(pid: int) -> list[bytes]:
    """Give a process's arguments; empty when they cannot be read."""
    try:
        with Path(f"/proc/{pid}/cmdline").open("rb") as file:
            return file.read(CMDLINE_BYTES_MAX).split(b"\0")
    except OSError:
        return []


def socket_owner(path: Path) -> Process | None:
    """Find the process that listens on a Unix socket; None when nobody does."""
    for kind in (socket.SOCK_SEQPACKET, socket.SOCK_STREAM):
        with socket.socket(socket.AF_UNIX, kind) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(str(path))
                credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            except OSError:
                continue
            pid = struct.unpack("3i", credentials)[0]
            return Process.hold(pid) if pid > 0 else None
    return None


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
