"""Unpacks a root filesystem from a tar, once, into a directory that sandboxes then share under private overlays.

The archive is a stranger's: names may not leave the directory or pass through a link, devices are refused (those under
/dev are left out, a sandbox has its own), setuid bits are dropped unless the template allows them, and size and count
have bounds. Symbolic links are kept as they are: nothing here ever follows one.
"""

import hashlib
import os
import shutil
import stat
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, final

from kernpool_sandbox.errors import ImageError

NOBODY = 65_534
IDS_MAX = 65_536
_COPY_BYTES = 1 << 20


@final
@dataclass(frozen=True, slots=True)
class UnpackPolicy:
    """What an archive may hold at most."""

    bytes_max: int = 32 << 30
    entries_max: int = 2_000_000
    name_bytes_max: int = 4096
    depth_max: int = 128
    allow_setuid: bool = False
    keep_owners: bool = True
    """False: everything belongs to this process's user (a node without root)."""


def digest(archive: Path) -> str:
    """Return the SHA-256 of a file's bytes. OSError."""
    with archive.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unpack(archive: Path, target: Path, policy: UnpackPolicy) -> None:
    """Unpack a tar (plain, gzip, bzip2 or xz) into the new directory `target`; on any error nothing is left of it.

    Raises ImageError naming the entry and what is wrong with it.
    """
    target.mkdir(mode=0o755, parents=True)
    try:
        with tarfile.open(archive, "r|*") as tar:
            unpacker = _Unpacker(target, policy)
            for member in tar:
                unpacker.take(tar, member)
                tar.members.clear()  # type: ignore[attr-defined]  # else every header ever read is kept in memory
            unpacker.finish()
    except (tarfile.TarError, EOFError) as error:
        shutil.rmtree(target, ignore_errors=True)
        raise ImageError(f"{archive} is not a readable tar archive: {error}") from error
    except OSError as error:
        shutil.rmtree(target, ignore_errors=True)
        raise ImageError(f"{archive} could not be unpacked to {target}: {error}") from error
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


@final
class _Unpacker:
    """Takes the entries of one archive, in order; this process alone writes below the directory meanwhile."""

    def __init__(self, root: Path, policy: UnpackPolicy) -> None:
        self._root = root
        self._policy = policy
        self._entries = 0
        self._bytes = 0
        self._directories: list[tuple[Path, tarfile.TarInfo]] = []
        """Their modes and times are set at the end, so that a read-only one can be filled."""

    def take(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        """Put one entry where it belongs. ImageError, OSError."""
        self._count(member)
        parts = self._parts(member.name)
        if not parts:
            return  # the root itself
        if parts[0] == "dev" and (len(parts) > 1 or not member.isdir()):
            return
        path = self._place(parts, member)
        if member.isdir():
            self._directory(path, member)
        elif member.isreg():
            self._file(path, member, tar.extractfile(member))
        elif member.issym():
            path.symlink_to(member.linkname)
            self._own(path, member)
        elif member.islnk():
            self._hard_link(path, member)
        elif member.isfifo():
            os.mkfifo(path, member.mode & 0o777)
            self._own(path, member)
        else:
            raise ImageError(f"entry {member.name!r} is a device or of an unknown kind; devices only belong under /dev")

    def finish(self) -> None:
        """Give every directory its mode and time, the deepest first."""
        for path, member in reversed(self._directories):
            self._own(path, member)
            path.chmod(self._mode(member))
            os.utime(path, (member.mtime, member.mtime))

    def _count(self, member: tarfile.TarInfo) -> None:
        self._entries += 1
        self._bytes += max(0, member.size) if member.isreg() else 0
        if self._entries > self._policy.entries_max:
            raise ImageError(f"the archive has more than {self._policy.entries_max} entries")
        if self._bytes > self._policy.bytes_max:
            raise ImageError(
                f"the archive unpacks to more than {self._policy.bytes_max >> 20} MiB (at {member.name!r})"
            )

    def _parts(self, name: str) -> tuple[str, ...]:
        if name.startswith("/"):
            raise ImageError(f"entry {name!r} has an absolute name")
        parts = tuple(part for part in PurePosixPath(name).parts if part != ".")
        if ".." in parts:
            raise ImageError(f"entry {name!r} leads out of the image")
        if len(parts) > self._policy.depth_max or len(os.fsencode(name)) > self._policy.name_bytes_max:
            raise ImageError(f"entry {name[:80]!r}... has too long a name")
        return parts

    def _place(self, parts: tuple[str, ...], member: tarfile.TarInfo) -> Path:
        """Return where the entry goes: parents are made, a link as a parent is refused, an older entry is replaced."""
        path = self._root
        for part in parts[:-1]:
            path = path / part
            self._require_directory(path, member)
        path = path / parts[-1]
        if os.path.lexists(path) and not (member.isdir() and path.is_dir() and not path.is_symlink()):
            if path.is_dir() and not path.is_symlink():
                raise ImageError(f"entry {member.name!r} replaces a directory")
            path.unlink()
        return path

    def _require_directory(self, path: Path, member: tarfile.TarInfo) -> None:
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            path.mkdir(mode=0o755)
            return
        if not stat.S_ISDIR(mode):
            raise ImageError(f"entry {member.name!r} passes through {path.relative_to(self._root)}, not a directory")

    def _directory(self, path: Path, member: tarfile.TarInfo) -> None:
        if not path.exists():
            path.mkdir(mode=0o700)
        self._directories.append((path, member))

    def _file(self, path: Path, member: tarfile.TarInfo, content: IO[bytes] | None) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            if content is not None:
                shutil.copyfileobj(content, file, _COPY_BYTES)
        self._own(path, member)
        path.chmod(self._mode(member))
        os.utime(path, (member.mtime, member.mtime))

    def _hard_link(self, path: Path, member: tarfile.TarInfo) -> None:
        target = self._root
        parts = self._parts(member.linkname)
        for part in parts[:-1]:
            target = target / part
            self._require_directory(target, member)
        target = target / parts[-1] if parts else target
        if not target.is_file() or target.is_symlink():
            raise ImageError(f"entry {member.name!r} is a hard link to {member.linkname!r}, which is no earlier file")
        os.link(target, path, follow_symlinks=False)

    def _own(self, path: Path, member: tarfile.TarInfo) -> None:
        if self._policy.keep_owners:
            uid = member.uid if 0 <= member.uid < IDS_MAX else NOBODY
            gid = member.gid if 0 <= member.gid < IDS_MAX else NOBODY
            os.chown(path, uid, gid, follow_symlinks=False)

    def _mode(self, member: tarfile.TarInfo) -> int:
        mode = member.mode & 0o7777
        if not member.isdir() and not self._policy.allow_setuid:
            mode &= ~(stat.S_ISUID | stat.S_ISGID)
        if not self._policy.keep_owners:
            mode |= 0o700 if member.isdir() else 0o400  # its only owner must be able to read it
        return mode
