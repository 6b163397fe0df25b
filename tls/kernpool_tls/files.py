"""Files that hold secrets: mode 0600 from the first byte on, replaced as a whole, refused when others may read them."""

import os
import secrets
import stat
from pathlib import Path

from kernpool_tls.errors import InsecureFileError


def make_private_directory(path: Path) -> None:
    """Make a directory (and its parents) that only its owner enters, mode 0700."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)


def write_private(path: Path, data: bytes) -> None:
    """Replace `path` as a whole: after a crash there is the old file or the new one, never a part. Raises OSError."""
    temporary = _write_beside(path, data)
    try:
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def create_private(path: Path, data: bytes) -> bool:
    """Write `path` unless it exists; False when somebody else was first (his file stands). Raises OSError."""
    temporary = _write_beside(path, data)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    _sync_directory(path.parent)
    return True


def read_private(path: Path, bytes_max: int = 1 << 20) -> bytes:
    """The bytes of a file that only its owner may read.

    Raises FileNotFoundError, InsecureFileError when others may read it or it is no regular file, OSError.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise InsecureFileError(f"{path} is not a regular file")
        if mode & 0o077:
            raise InsecureFileError(f"{path} has mode {stat.S_IMODE(mode):04o}, others may read it: `chmod 600 {path}`")
        return os.read(descriptor, bytes_max)
    finally:
        os.close(descriptor)


def _write_beside(path: Path, data: bytes) -> Path:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
