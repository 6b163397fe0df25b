"""Group commit: who waits for what, and whose failure is whose."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence

import pytest
from sqlalchemy import Column, MetaData, String, Table

from kernpool_coordinator.errors import BusyError, StoreError
from kernpool_coordinator.store import GroupWriter, Operation, Put
from kernpool_coordinator.store.writer import GROUP_MAX, RowError

TABLE = Table("things", MetaData(), Column("id", String, primary_key=True))


def put(name: str) -> Put:
    return Put(TABLE, {"id": name})


class Disk:
    """Collects commits; can be held in the middle of one, and can refuse."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.held = threading.Event()
        self.entered = threading.Event()
        self.held.set()
        self.full = False

    def commit(self, operations: Sequence[Operation]) -> None:
        self.entered.set()
        assert self.held.wait(10)
        names = [operation.row["id"] for operation in operations if isinstance(operation, Put)]
        if self.full:
            raise StoreError("the disk is full")
        if "bad" in names:
            raise RowError("a row was refused")
        self.groups.append(names)


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
async def writer(disk: Disk) -> AsyncIterator[GroupWriter]:
    writer = GroupWriter(disk.commit, queue_max=1000)
    yield writer
    disk.held.set()
    await writer.close()


async def enter(disk: Disk) -> None:
    assert await asyncio.to_thread(disk.entered.wait, 10)


async def test_an_idle_writer_commits_at_once(writer: GroupWriter, disk: Disk) -> None:
    """One person types one command: the answer must not wait for a timer."""
    await writer.write([put("a")])
    assert disk.groups == [["a"]]
    assert writer.statistics().commits == 1


async def test_rows_gather_while_a_commit_runs(writer: GroupWriter, disk: Disk) -> None:
    """A hundred jobs are submitted at once: two commits, not a hundred."""
    disk.held.clear()
    first = writer.submit([put("first")])
    await enter(disk)
    others = [writer.submit([put(f"n{i}")]) for i in range(100)]
    disk.held.set()
    await asyncio.gather(first, *others)
    assert disk.groups == [["first"], [f"n{i}" for i in range(100)]]
    assert writer.statistics().commits == 2


async def test_a_burst_of_one_tick_is_one_commit(writer: GroupWriter, disk: Disk) -> None:
    await asyncio.gather(*[writer.submit([put(f"n{i}")]) for i in range(10)])
    assert writer.statistics().commits == 1


async def test_a_commit_has_a_bound(writer: GroupWriter, disk: Disk) -> None:
    """A flood must not make one commit so long that everybody behind it waits for seconds."""
    await asyncio.gather(*[writer.submit([put(f"n{i}")]) for i in range(GROUP_MAX + 10)])
    assert [len(group) for group in disk.groups] == [GROUP_MAX, 10]


async def test_the_rows_of_one_caller_are_never_parted(writer: GroupWriter, disk: Disk) -> None:
    big = [put(f"n{i}") for i in range(GROUP_MAX + 1)]
    await asyncio.gather(writer.submit([put("small")]), writer.submit(big))
    assert [len(group) for group in disk.groups] == [1, GROUP_MAX + 1]


async def test_a_failed_commit_fails_exactly_its_callers(writer: GroupWriter, disk: Disk) -> None:
    """The disk is full for a moment: those in that commit are told, those after it are served."""
    disk.held.clear()
    disk.full = True
    first = writer.submit([put("first")])
    await enter(disk)
    later = [writer.submit([put(f"n{i}")]) for i in range(3)]
    first.add_done_callback(lambda _: setattr(disk, "full", False))
    disk.held.set()
    with pytest.raises(StoreError, match="full"):
        await first
    # The second group may have met the full disk too, but then all of it did.
    outcomes = await asyncio.gather(*later, return_exceptions=True)
    assert len({type(outcome) for outcome in outcomes}) == 1
    await writer.write([put("after")])
    assert disk.groups[-1] == ["after"]


async def test_a_refused_row_fails_its_caller_alone(writer: GroupWriter, disk: Disk) -> None:
    """A fault in one request must not lose the requests that happened to share its commit."""
    outcomes = await asyncio.gather(*[writer.submit([put(name)]) for name in ("a", "bad", "b")], return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), StoreError, type(None)]
    assert disk.groups == [["a"], ["b"]]


async def test_a_queue_that_is_full_refuses(writer: GroupWriter, disk: Disk) -> None:
    disk.held.clear()
    writer.submit([put("first")])
    await enter(disk)
    waiting = writer.submit([put(f"n{i}") for i in range(1000)])
    with pytest.raises(BusyError, match="1000 rows wait"):
        writer.submit([put("one too many")])
    disk.held.set()
    await waiting


async def test_closing_commits_what_is_queued(disk: Disk) -> None:
    writer = GroupWriter(disk.commit)
    waiting = [writer.submit([put(f"n{i}")]) for i in range(5)]
    await writer.close()
    assert all(one.done() and one.exception() is None for one in waiting)
    with pytest.raises(StoreError, match="closed"):
        writer.submit([put("late")])


async def test_a_caller_that_goes_away_takes_nothing_back(writer: GroupWriter, disk: Disk) -> None:
    """A client that hangs up during its submit: the row is either there or was never acknowledged."""
    disk.held.clear()
    caller = asyncio.create_task(writer.write([put("a")]))
    await enter(disk)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    disk.held.set()
    await writer.write([put("b")])
    assert disk.groups == [["a"], ["b"]]
