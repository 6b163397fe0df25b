"""Commit, then do: rows and events go to disk together, and only then is anything sent or shown because of them.

What a caller waits for fails with its error. What nobody waits for (a state that a node told) is kept in order and
tried again until the store takes it: memory stays ahead of a full disk, and nothing is acknowledged meanwhile.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, final

from kernpool_coordinator.errors import CoordinatorError, StoreError
from kernpool_coordinator.events.log import Event, EventLog
from kernpool_coordinator.store import Operation, Put, Store

BACKLOG_MAX: Final = 200_000
"""Rows kept in memory while the store takes none; beyond it the oldest are given up, loudly."""

logger = logging.getLogger(__name__)


def _nothing() -> None:
    pass


@final
@dataclass(slots=True)
class _Change:
    operations: list[Operation]
    events: Sequence[Event]
    then: Callable[[], None]


@final
class Commits:
    """The one way by which the rooms write."""

    def __init__(self, store: Store, events: EventLog) -> None:
        self._store = store
        self._events = events
        self._backlog: deque[_Change] = deque()
        """Changes that the store has not taken, oldest first; while there are any, newer ones queue behind them."""
        self._backlog_rows = 0
        self._retrying = False
        self.problem = ""
        """Why the store takes nothing, while it does not; empty: it does."""

    async def now(self, operations: Sequence[Operation], events: Sequence[Event] = ()) -> None:
        """Wait until the change is on disk. Raises StoreError, BusyError; then nothing of it is."""
        if self._backlog:
            # An older row of the same thing may wait there and would overwrite this one later.
            raise StoreError(self.problem or "the store is behind", hint="try again in a moment")
        await self._store.write([*operations, *[event.put() for event in events]])
        self._events.publish(events)

    def later(
        self, operations: Sequence[Operation], events: Sequence[Event] = (), then: Callable[[], None] = _nothing
    ) -> None:
        """Write the change in the background, in order; `then` is called once it is on disk."""
        change = _Change([*operations, *[event.put() for event in events]], events, then)
        if self._backlog:
            self._keep(change)
        else:
            self._submit(change)

    async def retry(self) -> None:
        """Try the backlog again; called by the ticker."""
        if self._retrying or not self._backlog:
            return
        self._retrying = True
        try:
            while self._backlog:
                change = self._backlog[0]
                renewed = [one.renewed() if isinstance(one, Put) else one for one in change.operations]
                await self._store.write(renewed)
                if self._backlog and self._backlog[0] is change:
                    self._backlog.popleft()
                    self._backlog_rows -= len(change.operations)
                self._done(change)
        except CoordinatorError as error:
            self.problem = error.message
        finally:
            self._retrying = False
        if not self._backlog and self.problem:
            logger.info("the store takes rows again")
            self.problem = ""

    @property
    def behind(self) -> int:
        """Rows that wait for the store to take rows again."""
        return self._backlog_rows

    def _submit(self, change: _Change) -> None:
        try:
            future = self._store.submit(change.operations)
        except CoordinatorError as error:
            self._failed(change, error)
            return
        future.add_done_callback(lambda done: self._settled(change, done))

    def _settled(self, change: _Change, done: asyncio.Future[None]) -> None:
        error = done.exception() if not done.cancelled() else None
        if isinstance(error, CoordinatorError):
            self._failed(change, error)
        else:
            self._done(change)

    def _done(self, change: _Change) -> None:
        self._events.publish(change.events)
        change.then()

    def _failed(self, change: _Change, error: CoordinatorError) -> None:
        if not self.problem:
            logger.error("%s; %d rows are kept in memory and tried again", error.message, len(change.operations))
        self.problem = error.message
        self._keep(change)

    def _keep(self, change: _Change) -> None:
        self._backlog.append(change)
        self._backlog_rows += len(change.operations)
        while self._backlog_rows > BACKLOG_MAX:
            oldest = self._backlog.popleft()
            self._backlog_rows -= len(oldest.operations)
            logger.error("the store was away for too long: %d rows are given up", len(oldest.operations))
