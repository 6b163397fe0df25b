"""The journal: on disk when append returns, whole after any crash, and honest about a full disk."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernpool_agent import journal as journal_module
from kernpool_agent.errors import DiskFullError, JournalError
from kernpool_agent.journal import MAGIC, Journal


def opened(path: Path, live: list[bytes] | None = None) -> tuple[Journal, list[bytes]]:
    return Journal.open(path, lambda: live or [])


async def written(path: Path, *records: bytes) -> None:
    journal, _ = opened(path)
    for record in records:
        await journal.append(record)
    await journal.close()


async def test_what_was_appended_is_there_after_a_restart(tmp_path: Path) -> None:
    """The ordinary life of an agent."""
    await written(tmp_path / "journal", b"one", b"two")
    journal, records = opened(tmp_path / "journal")
    await journal.append(b"three")
    await journal.close()
    assert records == [b"one", b"two"]
    assert (tmp_path / "journal").stat().st_mode & 0o777 == 0o600
    last, again = opened(tmp_path / "journal")
    await last.close()
    assert again == [b"one", b"two", b"three"]


async def test_many_at_once_share_their_fsyncs(tmp_path: Path) -> None:
    """A gang of 200 ranks lands on the node at once: 200 fsyncs in a row would take a second."""
    journal, _ = opened(tmp_path / "journal")
    await asyncio.gather(*[journal.append(b"%d" % n) for n in range(200)])
    await journal.close()
    assert journal.records_written == 200
    assert journal.fsyncs <= 3


@pytest.mark.parametrize("cut", range(1, 12))
async def test_a_torn_tail_is_cut_and_kept_aside(tmp_path: Path, cut: int) -> None:
    """The power went in the midst of the last write."""
    path = tmp_path / "journal"
    await written(path, b"whole", b"torn")
    size = path.stat().st_size
    os.truncate(path, size - cut)
    journal, records = opened(path)
    await journal.append(b"next")
    await journal.close()
    assert records == [b"whole"]
    assert (tmp_path / "journal.torn").exists() == (cut < len(b"torn") + 8)
    last, again = opened(path)
    await last.close()
    assert again == [b"whole", b"next"]


@pytest.mark.parametrize("junk", [b"\0" * 64, b"\xff" * 64, b"\x04\0\0\0\0\0\0\0abcd", os.urandom(100)])
async def test_junk_behind_the_last_record_is_no_record(tmp_path: Path, junk: bytes) -> None:
    """A filesystem that extended the file but lost its data gives zeros, or what lay there before."""
    path = tmp_path / "journal"
    await written(path, b"whole")
    with path.open("ab") as file:
        file.write(junk)
    journal, records = opened(path)
    await journal.close()
    assert records == [b"whole"]


async def test_a_changed_byte_is_noticed(tmp_path: Path) -> None:
    """A rotten disk: what follows cannot be trusted, and is kept for a person to look at."""
    path = tmp_path / "journal"
    await written(path, b"first", b"second", b"third")
    data = bytearray(path.read_bytes())
    data[data.index(b"second")] ^= 1
    path.write_bytes(data)
    journal, records = opened(path)
    await journal.close()
    assert records == [b"first"]
    assert b"third" in (tmp_path / "journal.torn").read_bytes()


async def test_a_file_that_is_no_journal_is_refused_and_left_alone(tmp_path: Path) -> None:
    """Somebody put another file there: it is not ours to overwrite."""
    path = tmp_path / "journal"
    path.write_bytes(b"precious data of somebody")
    with pytest.raises(JournalError, match="is not a journal"):
        opened(path)
    assert path.read_bytes() == b"precious data of somebody"


async def test_a_crash_while_the_file_was_made_is_no_harm(tmp_path: Path) -> None:
    """Killed between creating the file and writing its first bytes."""
    (tmp_path / "journal").write_bytes(MAGIC[:3])
    journal, records = opened(tmp_path / "journal")
    await journal.append(b"one")
    await journal.close()
    assert records == []
    last, again = opened(tmp_path / "journal")
    await last.close()
    assert again == [b"one"]


async def test_a_long_journal_is_compacted_to_what_still_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that ran a million jobs must not read a million records at its start."""
    monkeypatch.setattr(journal_module, "COMPACT_BYTES_MIN", 4096)
    journal, _ = Journal.open(tmp_path / "journal", lambda: [b"live"])
    for number in range(600):
        await journal.append(b"record %d" % number)
    await journal.close()
    last, records = opened(tmp_path / "journal")
    await last.close()
    assert records[0] == b"live"
    assert records[-1] == b"record 599"
    assert len(records) < 600


# --- a full disk ---


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 256 KiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small filesystem needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], check=False)
    if mounted.returncode:
        pytest.skip("this machine does not let us mount a tmpfs")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def fill(filler: Path) -> None:
    """Take every byte that is left."""
    fd = os.open(filler, os.O_WRONLY | os.O_CREAT)
    try:
        with contextlib.suppress(OSError):
            while True:
                os.write(fd, b"x" * 1024)
    finally:
        os.close(fd)


async def test_a_full_disk_refuses_and_loses_nothing_that_was_promised(small_disk: Path) -> None:
    """Somebody's dataset filled the disk: no attempt may start that a crash would forget."""
    journal, _ = opened(small_disk / "journal")
    await journal.append(b"promised")
    fill(small_disk / "filler")
    with pytest.raises(DiskFullError, match="disk is full"):
        await journal.append(b"y" * 8192)
    journal.note(b"noted while full" + b" " * 8192)
    with pytest.raises(DiskFullError):
        await journal.append(b"z" * 8192)
    (small_disk / "filler").unlink()
    await journal.append(b"after")
    await journal.close()
    last, records = opened(small_disk / "journal")
    await last.close()
    assert [record.strip() for record in records] == [b"promised", b"noted while full", b"after"]


async def test_notes_wait_for_room_and_do_not_spin(small_disk: Path) -> None:
    """Ends of attempts keep coming while the disk is full: the writer must rest, and close must not hang."""
    journal, _ = opened(small_disk / "journal")
    fill(small_disk / "filler")
    journal.note(b"y" * 8192)
    async with asyncio.timeout(5):
        await journal.close()


KILLED = """
import asyncio, os, sys
from pathlib import Path
from kernpool_agent.journal import Journal

async def main() -> None:
    journal, _ = Journal.open(Path(sys.argv[1]), lambda: [])
    number = 0
    while True:
        await journal.append(b"%d" % number)
        os.write(1, b"%d\\n" % number)
        number += 1

asyncio.run(main())
"""


def test_what_was_promised_before_a_kill_is_there(tmp_path: Path) -> None:
    """SIGKILL at any moment: each number that was printed had been appended before."""
    path = tmp_path / "journal"
    with subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(50):
            process.stdout.readline()
        process.kill()
        promised = 49 + len(process.stdout.read().splitlines())
    journal, records = opened(path)
    os.close(journal._fd)
    assert [int(record) for record in records][: promised + 1] == list(range(promised + 1))
