"""The journal: an append-only file of checked records, on disk before anything starts because of them.

File: 8 bytes of magic, then records `[u32 length][u32 crc32 of payload][payload]`. One thread writes: it takes all that
waits, writes it with one write and one fdatasync, and takes what gathered meanwhile (a group commit without a timer).
A crash may tear the tail: what follows the last good record was never acknowledged to anybody and is set aside.
"""

import asyncio
import contextlib
import logging
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from errno import EDQUOT, EFBIG, ENOSPC
from pathlib import Path
from typing import final

from kernpool_agent.errors import DiskFullError, JournalError

log = logging.getLogger(__name__)

MAGIC = b"KPJRNL1\n"
RECORD_BYTES_MAX = 1 << 20
GROUP_RECORDS_MAX = 512
"""Records in one write: bounds how long the last of a flood waits for its fsync."""
COMPACT_BYTES_MIN = 1 << 20
"""A smaller file is never compacted."""
COMPACT_FACTOR = 4
"""A file is compacted when it is so many times larger than it was after the last compaction."""

_HEAD = struct.Struct("<II")


@final
class Journal:
    """An open journal. Not safe for several processes: whoever opens it holds the state directory's lock."""

    def __init__(self, path: Path, snapshot: Callable[[], Iterable[bytes]]) -> None:
        self._path = path
        self._snapshot = snapshot
        """Gives the records that a compacted file holds instead of all written so far."""
        self._fd = -1
        self._end = 0
        """Offset behind the last record that is whole; what lies beyond is cut before the next write."""
        self._compact_at = COMPACT_BYTES_MIN
        self._damaged = False
        """An fsync failed: the kernel may have dropped pages, so only a whole new file can be trusted."""
        self._waiting: list[tuple[bytes, asyncio.Future[None] | None]] = []
        """Framed records not yet written, with whom to tell; None: a note that nobody waits for."""
        self._writer: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._failing = False
        """The last write did not reach the disk."""
        self.fsyncs = 0
        self.records_written = 0

    @classmethod
    def open(cls, path: Path, snapshot: Callable[[], Iterable[bytes]]) -> tuple["Journal", list[bytes]]:
        """Open or create the file and return the journal and its records' payloads, oldest first.

        Raises JournalError when the file is none of ours or cannot be read, DiskFullError when it cannot be created.
        """
        journal = cls(path, snapshot)
        with _translated(path):
            records = journal._open_file()
        return journal, records

    async def append(self, payload: bytes) -> None:
        """Write one record; on return it is on disk.

        Raises DiskFullError or JournalError when it is not; then no part of it will be found by a later open.
        """
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((_framed(payload), told))
        self._wake()
        await told

    def note(self, payload: bytes) -> None:
        """Write one record soon, without waiting for the disk: for what can be found out again after a crash.

        When the disk is full it is kept and tried again with the next write.
        """
        self._waiting.append((_framed(payload), None))
        self._wake()

    async def close(self) -> None:
        """Write what waits and close the file."""
        if self._writer is not None:
            await self._writer
        await asyncio.get_running_loop().run_in_executor(self._thread, os.close, self._fd)
        self._thread.shutdown(wait=False)

    # --- the writer ---

    def _wake(self) -> None:
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write_waiting())

    async def _write_waiting(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                group, self._waiting = self._waiting[:GROUP_RECORDS_MAX], self._waiting[GROUP_RECORDS_MAX:]
                compacted = b"".join(map(_framed, self._snapshot())) if self._must_compact() else None
                data = b"".join(framed for framed, _ in group)
                durable = any(told is not None for _, told in group)
                try:
                    await loop.run_in_executor(self._thread, self._write, data, compacted, durable)
                except JournalError as error:
                    if self._refuse(group, error):
                        return  # only notes are left: they wait for the next append
                else:
                    self._recovered()
                    self.records_written += len(group)
                    for _, told in group:
                        if told is not None and not told.done():
                            told.set_result(None)
        finally:
            self._writer = None

    def _refuse(self, group: list[tuple[bytes, asyncio.Future[None] | None]], error: JournalError) -> bool:
        """Tell those who wait, keep the notes for later, and say whether nothing but notes is left."""
        if not self._failing:  # once, not with each record: those who wait are told each
            log.error("%s", error)
        self._failing = True
        for _, told in group:
            if told is not None and not told.done():
                told.set_exception(error)
        self._waiting[:0] = [(framed, None) for framed, told in group if told is None]
        return all(told is None for _, told in self._waiting)

    def _recovered(self) -> None:
        if self._failing:
            log.info("%s: records reach the disk again", self._path)
        self._failing = False

    def _must_compact(self) -> bool:
        return self._damaged or self._end >= self._compact_at

    # --- in the writer's thread (and in open, before there is one) ---

    def _write(self, data: bytes, compacted: bytes | None, durable: bool) -> None:  # noqa: FBT001
        with _translated(self._path):
            if compacted is not None:
                self._compact(compacted)
            try:
                _write_all(self._fd, data, self._end)
                if durable:
                    self._sync()
            except OSError:
                # Best effort: should the cut fail too, the next write starts at _end all the same.
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, self._end)
                raise
            self._end += len(data)

    def _sync(self) -> None:
        try:
            os.fdatasync(self._fd)
        except OSError:
            self._damaged = True
            raise
        self.fsyncs += 1

    def _compact(self, compacted: bytes) -> None:
        try:
            self._replace_file(compacted)
        except OSError as error:
            if self._damaged:
                raise
            self._compact_at = COMPACT_FACTOR * self._end  # the file is sound, only long: go on with it
            log.warning("%s could not be compacted: %s", self._path, error.strerror)

    def _replace_file(self, compacted: bytes) -> None:
        """Write a whole new file beside the old one and move it over, so that a crash leaves one of the two."""
        new = self._path.with_name(self._path.name + ".new")
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write_all(fd, MAGIC + compacted, 0)
            os.fsync(fd)
            new.rename(self._path)
        except OSError:
            os.close(fd)
            with contextlib.suppress(OSError):
                new.unlink()
            raise
        _sync_directory(self._path.parent)
        os.close(self._fd)
        self._fd, self._end, self._damaged = fd, len(MAGIC) + len(compacted), False
        self._compact_at = max(COMPACT_BYTES_MIN, COMPACT_FACTOR * self._end)

    def _open_file(self) -> list[bytes]:
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        data = _read_all(self._fd)
        if len(data) < len(MAGIC) and MAGIC.startswith(data):
            _write_all(self._fd, MAGIC, 0)  # new, or the crash came while it was being made
            os.fsync(self._fd)
            _sync_directory(self._path.parent)
            self._end = len(MAGIC)
            return []
        if not data.startswith(MAGIC):
            raise JournalError(f"{self._path} is not a journal of kp-agent; move it away to start with an empty one")
        records, self._end = _parse(data)
        if self._end < len(data):
            self._set_aside(data[self._end :])
        return records

    def _set_aside(self, torn: bytes) -> None:
        aside = self._path.with_name(self._path.name + ".torn")
        log.warning(
            "%s: the last %d bytes are no whole record (a crash in the midst of a write); kept in %s",
            self._path,
            len(torn),
            aside,
        )
        try:
            aside.write_bytes(torn[: 1 << 20])
        except OSError as error:
            log.warning("%s could not be written: %s", aside, error.strerror)
        os.ftruncate(self._fd, self._end)
        os.fsync(self._fd)


def _framed(payload: bytes) -> bytes:
    if len(payload) > RECORD_BYTES_MAX:
        raise JournalError(f"a record of {len(payload)} bytes is larger than {RECORD_BYTES_MAX}")
    return _HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def _parse(data: bytes) -> tuple[list[bytes], int]:
    """Return the payloads of all whole records and the offset behind the last of them."""
    records: list[bytes] = []
    at = len(MAGIC)
    while at + _HEAD.size <= len(data):
        length, crc = _HEAD.unpack_from(data, at)
        payload = data[at + _HEAD.size : at + _HEAD.size + length]
        # An empty record is never written; eight zero bytes (a hole a crash left) would else pass for one.
        if not 0 < length <= RECORD_BYTES_MAX or len(payload) < length or zlib.crc32(payload) != crc:
            break
        records.append(payload)
        at += _HEAD.size + length
    return records, at


def _write_all(fd: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written


def _read_all(fd: int) -> bytes:
    return b"".join(_chunks(fd))


def _chunks(fd: int) -> Iterator[bytes]:
    at = 0
    while chunk := os.pread(fd, 1 << 20, at):
        yield chunk
        at += len(chunk)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (ENOSPC, EDQUOT, EFBIG):
            raise DiskFullError(
                f"{path}: the disk is full ({error.strerror}); free some space, nothing starts until then"
            ) from error
        raise JournalError(f"{path}: {error.strerror}") from error
