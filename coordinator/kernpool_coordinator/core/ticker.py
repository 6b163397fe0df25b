"""The ticker: lets every room look at the time, a few times a second, and tidies the store once in a while."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, final

from kernpool_coordinator.core.clock import Clock, Now
from kernpool_coordinator.core.rooms import Rooms
from kernpool_coordinator.errors import CoordinatorError

TICK_S: Final = 0.25
"""Deadlines are kept to within this."""
RETRY_S: Final = 1.0
TIDY_S: Final = 3_600.0

logger = logging.getLogger(__name__)


@final
class Ticker:
    """Calls the rooms; a fault in one is logged and keeps none of the others from its turn."""

    def __init__(self, rooms: Rooms, clock: Clock, *, events_kept: int, jobs_kept: int) -> None:
        self._rooms = rooms
        self._clock = clock
        self._events_kept = events_kept
        self._jobs_kept = jobs_kept
        self._next_retry = self._next_tidy = 0.0
        self._task: asyncio.Task[None] | None = None
        self._ticks: tuple[Callable[[Now], None], ...] = (
            rooms.nodes.tick,
            lambda now: rooms.links.tick(now.mono),
            rooms.desk.tick,
            rooms.creates.tick,
            lambda _: rooms.sandboxes.tick(),
        )

    def start(self) -> None:
        """Begin; needs a running loop."""
        now = self._clock.now().mono
        self._next_retry, self._next_tidy = now + RETRY_S, now + TIDY_S
        self._task = asyncio.create_task(self._run(), name="ticker")

    async def stop(self) -> None:
        """End, after the tick under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def tick(self) -> None:
        """One turn of all rooms."""
        now = self._clock.now()
        for one in self._ticks:
            try:
                one(now)
            except Exception:
                # A fault of ours; without the others' turn nodes would look dead and deadlines would not be kept.
                logger.exception("a room failed at its tick")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.tick()
            mono = self._clock.now().mono
            if mono >= self._next_retry:
                self._next_retry = mono + RETRY_S
                await self._guarded(self._rooms.commits.retry())
            if mono >= self._next_tidy:
                self._next_tidy = mono + TIDY_S
                await self._guarded(self.tidy())

    async def tidy(self) -> None:
        """Prune what is old. Raises StoreError; the next hour tries again."""
        rooms, now = self._rooms, self._clock.now()
        await rooms.events.prune(self._events_kept)
        await rooms.jobs.prune(self._jobs_kept)
        await rooms.sandboxes.prune()
        old = [*rooms.keys.prune(now.unix), *rooms.join_tokens.prune(), *rooms.enrolments.prune()]
        await rooms.store.write(old)

    async def _guarded(self, work: Awaitable[None]) -> None:
        try:
            await work
        except CoordinatorError as error:
            logger.warning("tidying the store failed, it is tried again: %s", error.message)
        except Exception:
            logger.exception("tidying the store failed")
