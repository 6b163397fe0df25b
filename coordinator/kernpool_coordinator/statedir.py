"""The coordinator's state directory: made private, held by one process at a time, and the small files in it."""

import errno
import fcntl
import os
import tempfile
from pathlib import Path
from typing import Self, final


class StateDirError(Exception):
    """The state directory cannot be used; the message says why and what to do."""


class StateDirBusyError(StateDirError):
    """Another coordinator holds the directory; the message names its pid."""


@final
class StateDir:
    """An owned state directory: the lock is held until `close`, and dies with the process."""

    __slots__ = ("_lock_fd", "path")

    def __init__(self, path: Path, lock_fd: int) -> None:
        self.path = path
        """Mode 0700."""
        self._lock_fd = lock_fd
        """Descriptor of coordinator.pid, under flock; -1 once closed."""

    @classmethod
    def hold(cls, path: Path) -> Self:
        """Make `path` if it is missing and take it; raises StateDirBusyError or StateDirError."""
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.chmod(0o700)
            lock_fd = os.open(path / "coordinator.pid", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateDirError(
                f"Cannot use the state directory {path}: {error.strerror}. Name another one with --state-dir."
            ) from error
        try:
            _lock(lock_fd, path)
        except BaseException:
            os.close(lock_fd)
            raise
        return cls(path, lock_fd)

    def close(self) -> None:
        """Give the directory back."""
        if self._lock_fd >= 0:
            os.ftruncate(self._lock_fd, 0)
            os.close(self._lock_fd)
            self._lock_fd = -1


def _lock(lock_fd: int, path: Path) -> None:
    """Take the flock and write our pid under it."""
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise StateDirError(f"Cannot lock {path / 'coordinator.pid'}: {error.strerror}.") from error
        pid = os.pread(lock_fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        raise StateDirBusyError(
            f"The state directory {path} is in use by the coordinator with pid {pid}. "
            "Stop that one first, or name another directory with --state-dir."
        ) from error
    os.ftruncate(lock_fd, 0)
    os.pwrite(lock_fd, f"{os.getpid()}\n".encode(), 0)


def write_private(path: Path, text: str) -> None:
    """Put `text` at `path` in one step, readable by its owner alone; raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # 0600 from the start
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
