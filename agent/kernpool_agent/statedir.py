"""The agent's state directory: private, held by one agent at a time, with the counter of its starts.

agent.pid      the holder's pid, under flock
incarnation    how often an agent started here
identity/      key and certificates
journal        attempts (journal.py)
work/          the spawner's and kp-init's own (sandboxes and jobs)
"""

import errno
import fcntl
import logging
import os
from pathlib import Path
from typing import Self, final

from kernpool_agent.errors import FatalError, StateDirBusyError

log = logging.getLogger(__name__)

PID_FILE = "agent.pid"
PID_CHARS = 10


@final
class StateDir:
    """A held state directory; the lock dies with the process, or with `close`."""

    __slots__ = ("_lock_fd", "path")

    def __init__(self, path: Path, lock_fd: int) -> None:
        self.path = path
        self._lock_fd = lock_fd
        """Descriptor of the pid file under flock; not inherited by children (O_CLOEXEC)."""

    @classmethod
    def hold(cls, path: Path) -> Self:
        """Make the directory if it is missing and take it.

        Raises StateDirBusyError naming the holder's pid, FatalError when the directory cannot be used.
        """
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.chmod(0o700)
            lock_fd = os.open(path / PID_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise FatalError(f"cannot use the state directory {path}: {error.strerror}; see --state-dir") from error
        try:
            _lock(lock_fd, path)
        except BaseException:
            os.close(lock_fd)
            raise
        return cls(path, lock_fd)

    def next_incarnation(self) -> int:
        """Count one more start of the agent on this node. Raises FatalError when the counter cannot be read.

        On a full disk the count is not kept: an agent that comes back to its work matters more.
        """
        file = self.path / "incarnation"
        try:
            number = int(file.read_text(encoding="ascii").strip() or 0) + 1 if file.exists() else 1
        except (OSError, ValueError) as error:
            raise FatalError(f"cannot count this start in {file}: {error}") from error
        try:
            replace_file(file, f"{number}\n".encode())
        except OSError as error:
            log.warning("this start is not counted in %s: %s", file, error.strerror)
        return number

    def close(self) -> None:
        """Let others have the directory."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


def replace_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Put `data` at `path` in one step that a crash cannot halve; raises OSError."""
    new = path.with_name(f".{path.name}.new")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        os.write(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    new.replace(path)


def _lock(lock_fd: int, path: Path) -> None:
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise FatalError(f"cannot lock {path / PID_FILE}: {error.strerror}") from error
        pid = os.pread(lock_fd, 32, 0).decode("ascii", "replace").strip()
        raise StateDirBusyError(path, pid) from error
    try:
        # Over the last holder's, of the same length: it needs no new block when the disk is full.
        os.pwrite(lock_fd, f"{os.getpid():<{PID_CHARS}}\n".encode(), 0)
    except OSError as error:
        log.warning("our pid is not told in %s: %s", path / PID_FILE, error.strerror)
