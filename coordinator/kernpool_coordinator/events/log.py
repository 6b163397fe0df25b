"""The event log: numbered, durable together with the change it tells of, paged and followable."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

from sqlalchemy import Connection, delete, func, select

from kernpool_coordinator.core.clock import Clock
from kernpool_coordinator.store import Put, Run, Store, schema

RING: Final = 2_000
"""Newest events in memory, for those that follow."""
PAGE_MAX: Final = 1_000
CAUSE_CHARS_MAX: Final = 2_000


@final
@dataclass(frozen=True, slots=True)
class Event:
    """One change of one thing."""

    id: int
    at_unix_s: float
    actor: str
    verb: str
    object: str
    """KIND/ID."""
    workspace: str
    cause: str = ""
    data: dict[str, Any] = field(default_factory=dict)

    def put(self) -> Put:
        """Give the operation that makes it durable."""
        row = {
            "id": self.id,
            "workspace": self.workspace,
            "owner": self.actor,
            "at_unix_s": self.at_unix_s,
            "actor": self.actor,
            "verb": self.verb,
            "object": self.object,
            "cause": self.cause,
            "data": json.dumps(self.data),
        }
        return Put(schema.events, row)

    def body(self) -> dict[str, Any]:
        """Give it as an EventBody."""
        return {
            "id": self.id,
            "at_unix_s": self.at_unix_s,
            "actor": self.actor,
            "verb": self.verb,
            "object": self.object,
            "workspace": self.workspace,
            "cause": self.cause,
            "data": self.data,
        }


@final
class EventLog:
    """Hands out numbers, keeps the newest in memory, reads the others from the store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._next_id = 1
        self._ring: deque[Event] = deque(maxlen=RING)
        """Published ones, by id; what is not here is in the store."""
        self._news = asyncio.Event()
        """Set, and replaced, at each publication."""

    async def load(self) -> None:
        """Go on after the newest event of the store."""
        newest = await self._store.read(lambda c: c.execute(select(func.max(schema.events.c.id))).scalar())
        self._next_id = (newest or 0) + 1

    def make(
        self,
        actor: str,
        verb: str,
        object_: str,
        workspace: str,
        cause: str = "",
        data: dict[str, Any] | None = None,
    ) -> Event:
        """Make the next event; it is seen by nobody until it was written and published."""
        event = Event(
            self._next_id, self._clock.now().unix, actor, verb, object_, workspace, cause[:CAUSE_CHARS_MAX], data or {}
        )
        self._next_id += 1
        return event

    def publish(self, events: Iterable[Event]) -> None:
        """Show events that are on disk."""
        self._ring.extend(events)
        self._news.set()
        self._news = asyncio.Event()

    async def page(self, after: int, limit: int, workspace: str | None, object_: str = "") -> list[dict[str, Any]]:
        """Give up to `limit` event bodies with a number above `after`; workspace None: of all."""
        limit = min(limit, PAGE_MAX)
        return await self._store.read(lambda connection: _read(connection, after, limit, workspace, object_))

    async def follow(self, after: int, workspace: str | None) -> AsyncIterator[list[dict[str, Any]]]:
        """Give batches of event bodies as they come, without end; after=-1: only new ones."""
        cursor = after if after >= 0 else self._next_id - 1
        while True:
            news = self._news
            if not self._reaches_back_to(cursor):
                batch = await self.page(cursor, PAGE_MAX, None)
                shown = [body for body in batch if workspace in (None, body["workspace"])]
                cursor = batch[-1]["id"] if batch else cursor
            else:
                found = [event for event in self._ring if event.id > cursor]
                cursor = found[-1].id if found else cursor
                shown = [event.body() for event in found if workspace in (None, event.workspace)]
                batch = shown
            if shown:
                yield shown
            elif not batch:
                await news.wait()

    async def prune(self, kept: int) -> None:
        """Remove all but the newest `kept` events."""
        await self._store.write([Run(delete(schema.events).where(schema.events.c.id < self._next_id - kept))])

    def _reaches_back_to(self, cursor: int) -> bool:
        """Whether memory has every event after `cursor`."""
        if self._ring:
            return self._ring[0].id <= cursor + 1
        return cursor >= self._next_id - 1


def _read(connection: Connection, after: int, limit: int, workspace: str | None, object_: str) -> list[dict[str, Any]]:
    table = schema.events
    query = select(table).where(table.c.id > after).order_by(table.c.id).limit(limit)
    if workspace is not None:
        query = query.where(table.c.workspace == workspace)
    if object_:
        query = query.where(table.c.object == object_)
    return [_body(row) for row in connection.execute(query).mappings()]


def _body(row: Any) -> dict[str, Any]:
    body = {key: value for key, value in row.items() if key != "owner"}
    body["data"] = json.loads(body["data"])
    return body


def bodies(events: Sequence[Event]) -> list[dict[str, Any]]:
    """Give several as bodies."""
    return [event.body() for event in events]
