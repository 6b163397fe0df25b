"""Reads and writes files inside a sandbox by kp-init's helper, as streams and lists."""

from collections.abc import AsyncIterable, AsyncIterator
from typing import final

from kernpool_sandbox.kpinit.init import InitClient
from kernpool_sandbox.kpinit.plan import FileEntry


@final
class InitFiles:
    """The files of one sandbox as one user of it sees them; errors are OSError with the errno from inside."""

    def __init__(self, client: InitClient, user: str = "", deadline_s: float = 30.0) -> None:
        raise NotImplementedError

    def read(self, path: str, offset: int = 0, limit: int = -1) -> AsyncIterator[bytes]:
        """Yield the bytes of a regular file from offset on, at most limit (-1: all) of them."""
        raise NotImplementedError

    async def write(
        self,
        path: str,
        data: AsyncIterable[bytes] | bytes,
        *,
        mode: int = 0o644,
        parents: bool = False,
        offset: int = 0,
    ) -> int:
        """Write a regular file in place (made with `mode` when missing) and return the bytes written."""
        raise NotImplementedError

    async def list(self, path: str) -> list[FileEntry]:
        """List a directory, sorted by name, without . and .."""
        raise NotImplementedError

    async def stat(self, path: str) -> FileEntry:
        """Describe one path; its name is the last part of the path."""
        raise NotImplementedError

    async def mkdir(self, path: str, *, mode: int = 0o755, parents: bool = False) -> None:
        """Make a directory."""
        raise NotImplementedError

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, an empty directory, or (recursive) a whole tree."""
        raise NotImplementedError

    async def move(self, path: str, to: str, *, parents: bool = False) -> None:
        """Rename; OSError EXDEV where the kernel cannot (a directory of the image)."""
        raise NotImplementedError
