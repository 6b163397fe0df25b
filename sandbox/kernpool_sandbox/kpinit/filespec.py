"""File operations inside a sandbox and what they tell of a file, as frozen records without I/O."""

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import final


class FileOp(IntEnum):
    """What the helper inside the sandbox does with a path."""

    READ = 1
    WRITE = 2
    LIST = 3
    STAT = 4
    MKDIR = 5
    REMOVE = 6
    MOVE = 7


class FileType(Enum):
    """What a directory entry is."""

    FILE = "file"
    DIR = "dir"
    SYMLINK = "symlink"
    OTHER = "other"


@final
@dataclass(frozen=True, slots=True)
class FileSpec:
    """One file operation inside a sandbox."""

    op: FileOp
    path: str
    user: str = ""
    """As in ExecSpec."""
    to: str = ""
    """MOVE: the new path."""
    offset: int = 0
    """READ: first byte. WRITE: 0 truncates; another offset writes there without truncating."""
    limit: int = -1
    """READ: at most so many bytes; -1: to the end."""
    mode: int = 0o644
    """WRITE, MKDIR: of what is newly made."""
    parents: bool = False
    """WRITE, MKDIR, MOVE: make missing parents. MKDIR: an existing directory is no error."""
    recursive: bool = False
    """REMOVE: a directory with all it holds."""
    deadline_s: float = 30.0
    """The helper is killed (ETIMEDOUT) when it makes no progress for so long."""


@final
@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file as the sandbox's own helper sees it; symbolic links are not followed."""

    name: str
    type: FileType
    mode: int
    """Permission bits."""
    uid: int
    gid: int
    size: int
    mtime_ns: int
    link: str = ""
    """Where a symbolic link points to."""
