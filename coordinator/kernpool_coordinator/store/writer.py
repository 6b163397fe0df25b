"""Group commit without a timer: an idle writer commits at once, rows gather while a commit runs.

Under light load a caller waits for exactly one commit; under heavy load the disk decides how many callers share one.
There is no timer to tune and nothing to wait for when nobody else writes (DECISIONS 20).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, final

from kernpool_coordinator.errors import BusyError, CoordinatorError, StoreError
from kernpool_coordinator.store.operations import Operation

GROUP_MAX: Final = 512
"""Rows of one commit: keeps its time, and so the wait of whoever comes next, in milliseconds."""
QUEUE_MAX: Final = 100_000
"""Rows that wait; beyond it callers are refused, because memory is not a queue."""


class RowError(CoordinatorError):
    """The database refused the values themselves, so that a group can be told apart into its callers."""


@final
@dataclass(frozen=True, slots=True)
class WriterStatistics:
    """Counters since the start."""

    commits: int
    rows: int
    failures: int
    """Commits that failed."""
    waiting: int
    """Rows in the queue now."""


@final
@dataclass(slots=True)
class _Entry:
    operations: Sequence[Operation]
    done: asyncio.Future[None]


@final
class GroupWriter:
    """Queues operations of the event loop and commits them in one thread of its own.

    The operations of one caller are committed together or not at all, callers in the order of their calls.
    """

    def __init__(self, commit: Callable[[Sequence[Operation]], None], *, queue_max: int = QUEUE_MAX) -> None:
        self._commit = commit
        """Runs in the writer's thread: commits all or raises StoreError (RowError: the values were refused)."""
        self._queue: deque[_Entry] = deque()
        self._queue_max = queue_max
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store-writer")
        self._running: asyncio.Task[None] | None = None
        """Not None while a commit runs or is about to."""
        self._closed = False
        self._waiting = 0
        self._commits = self._rows = self._failures = 0

    def submit(self, operations: Sequence[Operation]) -> asyncio.Future[None]:
        """Queue operations; the future is done once they are on disk, or carries StoreError.

        Raises BusyError when the queue is full and StoreError when the writer is closed.
        """
        if self._closed:
            raise StoreError("the store is closed: the coordinator is stopping")
        if self._waiting + len(operations) > self._queue_max and self._waiting:
            raise BusyError(f"{self._waiting} rows wait for the store: it cannot keep up", hint="try again later")
        loop = asyncio.get_running_loop()
        entry = _Entry(operations, loop.create_future())
        self._queue.append(entry)
        self._waiting += len(operations)
        if self._running is None:
            self._running = loop.create_task(self._drain(), name="store-writer")
        return entry.done

    async def write(self, operations: Sequence[Operation]) -> None:
        """Wait until the operations are on disk. Cancelling the caller does not take them back."""
        await asyncio.shield(self.submit(operations))

    async def close(self) -> None:
        """Commit what is queued and stop."""
        self._closed = True
        if self._running is not None:
            await self._running
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    def statistics(self) -> WriterStatistics:
        """Count what was done so far."""
        return WriterStatistics(self._commits, self._rows, self._failures, self._waiting)

    async def _drain(self) -> None:
        """Commit group after group until the queue is empty. Runs after the current tick, so its burst is one group."""
        try:
            while self._queue:
                await self._commit_group(self._next_group())
        finally:
            self._running = None

    def _next_group(self) -> list[_Entry]:
        group = [self._queue.popleft()]
        rows = len(group[0].operations)
        while self._queue and rows + len(self._queue[0].operations) <= GROUP_MAX:
            rows += len(self._queue[0].operations)
            group.append(self._queue.popleft())
        self._waiting -= rows
        return group

    async def _commit_group(self, group: list[_Entry]) -> None:
        error = await self._try(group)
        if isinstance(error, RowError) and len(group) > 1:
            # One caller's values are at fault: alone it fails alone, and the others are served.
            for entry in group:
                _settle([entry], await self._try([entry]))
            return
        _settle(group, error)

    async def _try(self, group: list[_Entry]) -> CoordinatorError | None:
        operations = [operation for entry in group for operation in entry.operations]
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._commit, operations)
        except CoordinatorError as error:
            self._failures += 1
            return error
        self._commits += 1
        self._rows += len(operations)
        return None


def _settle(group: list[_Entry], error: CoordinatorError | None) -> None:
    for entry in group:
        if entry.done.cancelled():
            continue
        if error is None:
            entry.done.set_result(None)
        else:
            entry.done.set_exception(StoreError(error.message, hint=error.hint))
