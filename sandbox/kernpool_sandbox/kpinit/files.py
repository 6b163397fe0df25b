"""Reads and writes files inside a sandbox by kp-init's helper, as streams and lists."""

import asyncio
import contextlib
import os
import stat
import struct
from collections.abc import AsyncIterable, AsyncIterator
from typing import Final, final

from kernpool_sandbox.kpinit.channel import failure, wait_fd
from kernpool_sandbox.kpinit.errors import ProtocolError
from kernpool_sandbox.kpinit.init import InitClient
from kernpool_sandbox.kpinit.plan import FileEntry, FileOp, FileSpec, FileType
from kernpool_sandbox.kpinit.wire import Frame, Tag, get_str, get_u64

_CHUNK_BYTES: Final = 64 * 1024
_PATIENCE_S: Final = 5.0
"""How much longer than the helper's own deadline we wait for its answer."""
_ENTRY: Final = struct.Struct("<IIIIIQq")
_TYPES: Final = {stat.S_IFREG: FileType.FILE, stat.S_IFDIR: FileType.DIR, stat.S_IFLNK: FileType.SYMLINK}


async def _read_chunk(fd: int, timeout_s: float) -> bytes:
    while True:
        try:
            return os.read(fd, _CHUNK_BYTES)
        except BlockingIOError:
            await wait_fd(fd, timeout_s=timeout_s, what="the sandbox's file helper")


async def _write_chunk(fd: int, data: bytes, timeout_s: float) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            await wait_fd(fd, writable=True, timeout_s=timeout_s, what="the sandbox's file helper")


async def _write_all(fd: int, data: AsyncIterable[bytes] | bytes, timeout_s: float) -> None:
    """Write everything; a helper that stops reading says why in its answer."""
    with contextlib.suppress(BrokenPipeError):
        if isinstance(data, bytes):
            await _write_chunk(fd, data, timeout_s)
            return
        async for chunk in data:
            await _write_chunk(fd, chunk, timeout_s)


def parse_entries(data: bytes) -> list[FileEntry]:
    """Decode what the helper writes for LIST and STAT; raises ProtocolError when it is cut short."""
    entries, position = [], 0
    while position < len(data):
        if len(data) - position < _ENTRY.size:
            raise ProtocolError("a file listing ends within an entry")
        length, mode, uid, gid, _, size, mtime_ns = _ENTRY.unpack_from(data, position)
        end = position + 4 + length
        names = data[position + _ENTRY.size : end].split(b"\0")
        if end > len(data) or len(names) != 3:
            raise ProtocolError("a file listing ends within a name")
        position = end
        name, link = get_str(names[0]), get_str(names[1])
        kind = _TYPES.get(stat.S_IFMT(mode), FileType.OTHER)
        entries.append(FileEntry(name, kind, stat.S_IMODE(mode), uid, gid, size, mtime_ns, link))
    return entries


@final
class InitFiles:
    """The files of one sandbox as one user of it sees them; errors are OSError with the errno from inside."""

    def __init__(self, client: InitClient, user: str = "", deadline_s: float = 30.0) -> None:
        self._client = client
        self._user = user
        self._deadline_s = deadline_s

    async def _answer(self, future: asyncio.Future[Frame]) -> int:
        frame = await asyncio.wait_for(future, self._deadline_s + _PATIENCE_S)
        if frame.a < 0:
            raise failure(frame)
        return get_u64(frame.values()[Tag.MOVED])

    async def _do(self, spec: FileSpec) -> None:
        await self._answer(self._client.start_file(spec))

    async def _stream(self, spec: FileSpec) -> AsyncIterator[bytes]:
        """Yield what the helper writes, then raise what it could not do."""
        ours, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            try:
                future = self._client.start_file(spec, theirs)
            finally:
                os.close(theirs)
            try:
                while chunk := await _read_chunk(ours, self._deadline_s + _PATIENCE_S):
                    yield chunk
                await self._answer(future)
            finally:
                future.cancel()
        finally:
            os.close(ours)

    def _spec(
        self,
        op: FileOp,
        path: str,
        *,
        to: str = "",
        offset: int = 0,
        limit: int = -1,
        mode: int = 0o644,
        parents: bool = False,
        recursive: bool = False,
    ) -> FileSpec:
        return FileSpec(
            op,
            path,
            self._user,
            to,
            offset,
            limit,
            mode,
            parents=parents,
            recursive=recursive,
            deadline_s=self._deadline_s,
        )

    def read(self, path: str, offset: int = 0, limit: int = -1) -> AsyncIterator[bytes]:
        """Yield the bytes of a regular file from offset on, at most limit (-1: all) of them."""
        return self._stream(self._spec(FileOp.READ, path, offset=offset, limit=limit))

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
        theirs, ours = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            spec = self._spec(FileOp.WRITE, path, offset=offset, mode=mode, parents=parents)
            future = self._client.start_file(spec, theirs)
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        try:
            await _write_all(ours, data, self._deadline_s + _PATIENCE_S)
        except BaseException:
            future.cancel()
            raise
        finally:
            os.close(ours)
        return await self._answer(future)

    async def list(self, path: str) -> list[FileEntry]:
        """List a directory, sorted by name, without . and .."""
        data = [chunk async for chunk in self._stream(self._spec(FileOp.LIST, path))]
        return sorted(parse_entries(b"".join(data)), key=lambda entry: entry.name)

    async def stat(self, path: str) -> FileEntry:
        """Describe one path; its name is the last part of the path."""
        data = [chunk async for chunk in self._stream(self._spec(FileOp.STAT, path))]
        return parse_entries(b"".join(data))[0]

    async def mkdir(self, path: str, *, mode: int = 0o755, parents: bool = False) -> None:
        """Make a directory."""
        await self._do(self._spec(FileOp.MKDIR, path, mode=mode, parents=parents))

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, an empty directory, or (recursive) a whole tree."""
        await self._do(self._spec(FileOp.REMOVE, path, recursive=recursive))

    async def move(self, path: str, to: str, *, parents: bool = False) -> None:
        """Rename; OSError EXDEV where the kernel cannot (a directory of the image)."""
        await self._do(self._spec(FileOp.MOVE, path, to=to, parents=parents))
