"""JobLog over real segment files written by a real writer."""

import asyncio
import multiprocessing
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from kernpool_agent.jobs.log import JobLog
from kernpool_agent.jobs.watch import DirectoryWatch


@pytest_asyncio.fixture
async def watch() -> AsyncIterator[DirectoryWatch]:
    watch = DirectoryWatch(asyncio.get_running_loop())
    yield watch
    watch.close()


class Writer:
    """Writes segments as a supervisor does."""

    def __init__(self, directory: Path, segment_bytes: int = 100) -> None:
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.offset = 0
        self.start = 0
        self.ended = False

    def write(self, data: bytes) -> None:
        while data:
            room = self.start + self.segment_bytes - self.offset
            if room == 0:
                self.start = self.offset
                room = self.segment_bytes
            with (self.directory / f"log.{self.start:016d}").open("ab") as file:
                file.write(data[:room])
            self.offset += min(room, len(data))
            data = data[room:]

    def drop_oldest(self) -> None:
        min(self.directory.glob("log.*")).unlink()


def read_all(log: JobLog, offset: int = 0, limit: int = 64) -> tuple[int, bytes]:
    """Returns (offset of the first byte, bytes)."""
    parts: list[bytes] = []
    first = -1
    while True:
        data, following = log.read(offset, limit)
        if not data:
            return first, b"".join(parts)
        if first < 0:
            first = following - len(data)
        parts.append(data)
        offset = following


async def test_bytes_are_read_across_segments_by_their_offset(tmp_path: Path, watch: DirectoryWatch) -> None:
    """A person reads a log that is longer than one segment, from any byte."""
    writer = Writer(tmp_path)
    text = bytes(range(256)) * 4
    writer.write(text)
    with JobLog(tmp_path, watch, lambda: writer.ended) as log:
        assert (log.start_offset, log.end_offset) == (0, 1024)
        for offset in (0, 1, 99, 100, 101, 1023):
            assert read_all(log, offset) == (offset, text[offset:])
        assert log.read(1024) == (b"", 1024)


async def test_a_rotated_away_start_shows_as_a_jump_of_the_offset(tmp_path: Path, watch: DirectoryWatch) -> None:
    """A job wrote more than its bound: who asks for the beginning learns how much is missing."""
    writer = Writer(tmp_path)
    writer.write(b"x" * 250)
    writer.drop_oldest()
    with JobLog(tmp_path, watch, lambda: False) as log:
        assert log.start_offset == 100
        data, following = log.read(10, 1000)
        assert following - len(data) == 100
        assert read_all(log, 10) == (100, b"x" * 150)


async def test_a_slow_reader_keeps_the_segment_it_stands_in(tmp_path: Path, watch: DirectoryWatch) -> None:
    """Rotation removes the file under a reader in the middle of it: it still gets that segment whole."""
    writer = Writer(tmp_path)
    writer.write(b"a" * 100 + b"b" * 50)
    with JobLog(tmp_path, watch, lambda: False) as log:
        assert log.read(0, 10) == (b"a" * 10, 10)
        writer.drop_oldest()
        assert read_all(log, 10) == (10, b"a" * 90 + b"b" * 50)


async def test_a_hole_between_segments_does_not_stall_a_reader(tmp_path: Path, watch: DirectoryWatch) -> None:
    """A full disk made the supervisor drop bytes: the reader goes on behind the hole and sees the jump."""
    (tmp_path / f"log.{0:016d}").write_bytes(b"before")
    (tmp_path / f"log.{50:016d}").write_bytes(b"after")
    with JobLog(tmp_path, watch, lambda: True) as log:
        assert log.read(0) == (b"before", 6)
        assert log.read(6) == (b"after", 55)


async def test_no_segment_yet_reads_as_empty(tmp_path: Path, watch: DirectoryWatch) -> None:
    """A log is followed before the job wrote its first byte."""
    with JobLog(tmp_path / "none", watch, lambda: True) as log:
        assert (log.start_offset, log.end_offset) == (0, 0)
        assert log.read(0) == (b"", 0)
        assert log.tail_offset(10) == 0


@pytest.mark.parametrize(
    ("text", "lines", "expected"),
    [
        (b"one\ntwo\nthree\n", 1, b"three\n"),
        (b"one\ntwo\nthree\n", 2, b"two\nthree\n"),
        (b"one\ntwo\nthree\n", 3, b"one\ntwo\nthree\n"),
        (b"one\ntwo\nthree\n", 99, b"one\ntwo\nthree\n"),
        (b"one\ntwo\nthree", 1, b"three"),
        (b"one\ntwo\nthree", 2, b"two\nthree"),
        (b"\n\n\n", 2, b"\n\n"),
        (b"one\ntwo\n", 0, b""),
        (b"", 5, b""),
        (b"".join(b"line %d\n" % n for n in range(40_000)), 2, b"line 39998\nline 39999\n"),
        (b"".join(b"line %d\n" % n for n in range(40_000)), 39_999, b""),
    ],
)
async def test_the_last_lines_are_found(
    tmp_path: Path, watch: DirectoryWatch, text: bytes, lines: int, expected: bytes
) -> None:
    """`kernpool logs --tail N` starts at the right byte, over segment and block borders."""
    writer = Writer(tmp_path, segment_bytes=70_000)
    writer.write(text)
    with JobLog(tmp_path, watch, lambda: True) as log:
        got = text[log.tail_offset(lines) :]
    if expected or not text or lines == 0:
        assert got == expected
    else:
        assert got == text[text.index(b"\n") + 1 :]


async def test_a_waiter_is_woken_by_a_write_of_another_process(tmp_path: Path, watch: DirectoryWatch) -> None:
    """The supervisor appends while a person follows; nothing polls."""
    with JobLog(tmp_path, watch, lambda: False) as log:
        for round_ in range(5):
            waiter = asyncio.ensure_future(log.wait_beyond(round_))
            await asyncio.sleep(0)
            process = multiprocessing.get_context("fork").Process(target=append, args=(tmp_path, b"x"))
            process.start()
            await asyncio.wait_for(waiter, 5)
            process.join()
            assert log.end_offset == round_ + 1


def append(directory: Path, data: bytes) -> None:
    with (directory / f"log.{0:016d}").open("ab") as file:
        file.write(data)


async def test_a_waiter_is_woken_by_the_end(tmp_path: Path, watch: DirectoryWatch) -> None:
    """The attempt ends without another byte: the follower is let go."""
    ended = False
    with JobLog(tmp_path, watch, lambda: ended) as log:
        waiters = [asyncio.ensure_future(log.wait_beyond(0)) for _ in range(3)]
        await asyncio.sleep(0)
        ended = True
        watch.wake(tmp_path)
        await asyncio.wait_for(asyncio.gather(*waiters), 5)
        assert log.ended


async def test_two_followers_of_one_log_are_both_woken_and_a_third_can_leave(
    tmp_path: Path, watch: DirectoryWatch
) -> None:
    """Several people follow one job and one presses Ctrl-C."""
    with JobLog(tmp_path, watch, lambda: False) as log:
        waiters = [asyncio.ensure_future(log.wait_beyond(0)) for _ in range(3)]
        await asyncio.sleep(0)
        waiters.pop().cancel()
        append(tmp_path, b"x")
        await asyncio.wait_for(asyncio.gather(*waiters), 5)


async def test_a_log_of_a_gigabyte_written_meanwhile_is_read_whole(tmp_path: Path, watch: DirectoryWatch) -> None:
    """A follower reads at the speed of a fast writer without missing or doubling a byte."""
    total = 64 << 20
    process = multiprocessing.get_context("fork").Process(target=write_much, args=(tmp_path, total))
    process.start()
    with JobLog(tmp_path, watch, lambda: not process.is_alive()) as log:
        offset = 0
        while offset < total:
            await asyncio.wait_for(log.wait_beyond(offset), 20)
            data, following = log.read(offset)
            assert following == offset + len(data)
            assert data == pattern(offset, len(data))
            offset = following
    process.join()


def pattern(offset: int, count: int) -> bytes:
    period = bytes(range(251))
    start = offset % 251
    return (period * (count // 251 + 2))[start : start + count]


def write_much(directory: Path, total: int) -> None:
    writer = Writer(directory, segment_bytes=8 << 20)
    while writer.offset < total:
        writer.write(pattern(writer.offset, min(70_001, total - writer.offset)))
