"""The files of one sandbox, moved by kp-init's helper inside it, so that no path of it is ever walked outside."""

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Self, final

from kernpool_sandbox.errors import FileError, SandboxEndedError
from kernpool_sandbox.kpinit.errors import KpInitError
from kernpool_sandbox.kpinit.files import InitFiles
from kernpool_sandbox.kpinit.init import InitClient
from kernpool_sandbox.kpinit.plan import FileEntry

PATH_BYTES_MAX = 4096


@final
class SandboxFiles:
    """What one user of a sandbox may do with its files. FileError with the errno from inside; SandboxEndedError."""

    __slots__ = ("_client", "_ended", "_files", "_used", "_user")

    def __init__(
        self, client: InitClient, user: str, used: Callable[[], None], ended: Callable[[], SandboxEndedError]
    ) -> None:
        self._client = client
        self._user = user
        self._files = InitFiles(client, user)
        self._used = used
        """Tells that the sandbox is in use (for its idle end)."""
        self._ended = ended
        """Makes the error that says how the sandbox ended."""

    def as_user(self, user: str) -> Self:
        """Return the same files as another user of the sandbox sees them."""
        return type(self)(self._client, user or self._user, self._used, self._ended)

    async def read(self, path: str, offset: int = 0, limit: int = -1) -> AsyncIterator[bytes]:
        """Yield a regular file's bytes from `offset` on, at most `limit` (-1: all)."""
        with self._translated("read", path):
            async for chunk in self._files.read(path, offset, limit):
                yield chunk

    async def write(
        self, path: str, data: AsyncIterable[bytes] | bytes, mode: int = 0o644, user: str = "", *, parents: bool = True
    ) -> int:
        """Write a regular file (missing parents are made) and return the bytes written."""
        files = self._files if not user else InitFiles(self._client, user)
        with self._translated("write", path):
            return await files.write(path, data, mode=mode, parents=parents)

    async def list(self, path: str) -> list[FileEntry]:
        """List a directory, sorted by name."""
        with self._translated("list", path):
            return await self._files.list(path)

    async def stat(self, path: str) -> FileEntry:
        """Describe one path; a symbolic link is not followed."""
        with self._translated("look at", path):
            return await self._files.stat(path)

    async def mkdir(self, path: str, mode: int = 0o755) -> None:
        """Make a directory with its missing parents; one that is there is no error."""
        with self._translated("make directory", path):
            await self._files.mkdir(path, mode=mode, parents=True)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, an empty directory, or (recursive) a whole tree."""
        with self._translated("remove", path):
            await self._files.remove(path, recursive=recursive)

    async def move(self, path: str, to: str) -> None:
        """Rename a file or directory."""
        with self._translated("move", path):
            await self._files.move(path, to, parents=True)

    @contextmanager
    def _translated(self, what: str, path: str) -> Iterator[None]:
        self._used()
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            raise FileError(f"cannot {what} {path} in the sandbox: {reason}", error.errno or 0) from error
        except KpInitError as error:
            raise self._ended() from error
        finally:
            self._used()
