"""Sandboxes as the API asks for them (show, list, remove, extend), and what nodes tell of them."""

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, final

from sqlalchemy import Connection, delete, select

from kernpool.bodies import RemoveSandboxesBody
from kernpool_coordinator.core.clock import Clock
from kernpool_coordinator.core.shapes import Listing
from kernpool_coordinator.errors import ConflictError, CoordinatorError, InvalidError, NotFoundError
from kernpool_coordinator.events.commits import Commits
from kernpool_coordinator.events.log import EventLog
from kernpool_coordinator.nodes.links import Links
from kernpool_coordinator.sandboxes.book import Sandbox, SandboxBook, read_sandboxes, sandbox_from
from kernpool_coordinator.store import Run, Store, schema
from kernpool_coordinator.tokens.actor import Actor
from kernpool_mesh.messages import ExtendSandbox, RemoveSandboxes, SandboxState, SandboxStatus
from kernpool_mesh.reasons import EndReason

ROWS_PER_COMMIT: Final = 500
PAGE_MAX: Final = 1_000
ENDED_ROWS_KEPT: Final = 20_000

logger = logging.getLogger(__name__)
Json = dict[str, Any]


@final
class SandboxService:
    """The sandboxes' side of the control plane, but for their making (`creates`)."""

    def __init__(
        self,
        book: SandboxBook,
        links: Links,
        commits: Commits,
        events: EventLog,
        store: Store,
        clock: Clock,
        *,
        reply_timeout_s: float,
    ) -> None:
        self.book = book
        self._links = links
        self._commits = commits
        self._events = events
        self._store = store
        self._clock = clock
        self._reply_timeout_s = reply_timeout_s
        self._notes: list[tuple[str, str, str, Json]] = []
        """Events that go to the store with the next rows: actor, verb, workspace, data."""

    async def load(self) -> None:
        """Take those that are alive or doomed; what became of them meanwhile their nodes will tell."""
        for sandbox in await self._store.read(read_sandboxes):
            self.book.add(sandbox)

    # --- what nodes tell ---

    def updated(self, node_id: str, statuses: Sequence[SandboxStatus]) -> None:
        """Sandboxes changed by themselves."""
        unix_s = self._clock.now().unix
        for status in statuses:
            sandbox = self.book.sandboxes.get(status.sandbox_id)
            if sandbox is not None and sandbox.node_id == node_id:
                self.book.tell(sandbox, status, unix_s)

    def synced(self, node_id: str, statuses: Sequence[SandboxStatus]) -> None:
        """A node that linked told all it holds."""
        unwanted = self.book.synced(node_id, statuses, self._clock.now().unix)
        if unwanted:
            self.remove_on(node_id, unwanted)

    def node_lost(self, node_id: str, cause: str) -> None:
        """The node is given up."""
        unix_s = self._clock.now().unix
        for sandbox in list(self.book.on_node.get(node_id, {}).values()):
            self.book.end(sandbox, EndReason.NODE_LOST, cause, unix_s, confirmed=False)

    # --- remove and extend ---

    async def remove(self, actor: Actor, body: RemoveSandboxesBody) -> Json:
        """End and remove; answers once the nodes have nothing left, or their time is over."""
        chosen = self._chosen(actor, body)
        if len(body.ids) == 1 and not chosen:
            raise NotFoundError(f"There is no sandbox {body.ids[0]}.", hint="kernpool sandbox ls")
        by_node: dict[str, list[str]] = {}
        for sandbox in chosen.values():
            if sandbox.alive or sandbox.doomed is not None:
                self.book.doom(sandbox, EndReason.CANCELLED)
                by_node.setdefault(sandbox.node_id, []).append(sandbox.id)
        self.note(actor.name, "removed", actor.workspace, {"count": len(chosen)})
        await asyncio.gather(*[self._remove_and_wait(node_id, ids) for node_id, ids in by_node.items()])
        left = [sandbox for sandbox in chosen.values() if sandbox.doomed is not None]
        if left:
            # It must survive us: the node is told when it is back, whoever coordinates then.
            await self._flush()
        return {
            "removed": [sandbox.id for sandbox in chosen.values() if sandbox.doomed is None],
            "unreachable": [{"id": sandbox.id, "node": sandbox.node_id} for sandbox in left],
        }

    def _chosen(self, actor: Actor, body: RemoveSandboxesBody) -> dict[str, Sandbox]:
        if not body.ids and not body.labels and not body.all:
            raise InvalidError("name sandboxes by `ids` or `labels`, or say `all`")
        if body.ids:
            found = (self.book.sandboxes.get(one) for one in body.ids)
            seen = [one for one in found if one is not None and _may_see(actor, one)]
        else:
            seen = [one for one in self.book.sandboxes.values() if one.alive and one.kit.workspace == actor.workspace]
        if body.labels:
            seen = [one for one in seen if body.labels.items() <= one.kit.labels.items()]
        return {one.id: one for one in seen}

    async def _remove_and_wait(self, node_id: str, ids: list[str]) -> None:
        done = asyncio.Event()
        self.remove_on(node_id, ids, done.set)
        await done.wait()

    def remove_on(self, node_id: str, ids: list[str], then: Callable[[], None] | None = None) -> None:
        """Ask a node to remove some; those it has confirmed are no longer doomed."""

        def answered(code: str, error: str) -> None:
            if code:
                logger.warning("node %s did not remove %d sandboxes: %s", node_id, len(ids), error or code)
            else:
                self._confirm(ids)
            if then is not None:
                then()

        try:
            self._links.send(
                node_id,
                lambda request_id: RemoveSandboxes(request_id, ids),
                "RemoveSandboxes",
                self._reply_timeout_s,
                answered,
            )
        except CoordinatorError as error:
            logger.info("node %s removes %d sandboxes when it is back: %s", node_id, len(ids), error.message)
            if then is not None:
                then()

    def _confirm(self, ids: Sequence[str]) -> None:
        unix_s = self._clock.now().unix
        for sandbox_id in ids:
            sandbox = self.book.sandboxes.get(sandbox_id)
            if sandbox is not None:
                self.book.end(sandbox, sandbox.doomed or EndReason.CANCELLED, "", unix_s)

    async def extend(self, actor: Actor, sandbox_id: str, ttl_s: float) -> Json:
        """Set its time to live anew."""
        sandbox = self._find(actor, sandbox_id)
        if not sandbox.alive:
            raise ConflictError(f"Sandbox {sandbox_id} has ended: {sandbox.reason}.", hint="kernpool sandbox ls")
        await self._links.ask(
            sandbox.node_id,
            lambda request_id: ExtendSandbox(request_id, sandbox_id, ttl_s),
            "ExtendSandbox",
            self._reply_timeout_s,
        )
        sandbox.expires_unix_s = self._clock.now().unix + ttl_s
        self.book.unsaved[sandbox.id] = sandbox
        return sandbox.body()

    # --- show ---

    def show(self, actor: Actor, sandbox_id: str) -> Json:
        """SandboxBody; raises NotFoundError."""
        return self._find(actor, sandbox_id).body()

    def node_of(self, sandbox_id: str) -> str:
        """The node that has it; raises NotFoundError, ConflictError."""
        sandbox = self.book.sandboxes.get(sandbox_id)
        if sandbox is None:
            raise NotFoundError(f"There is no sandbox {sandbox_id}.")
        if not sandbox.alive or sandbox.doomed is not None:
            raise ConflictError(
                f"Sandbox {sandbox_id} has ended: {sandbox.reason or sandbox.doomed}.", hint="kernpool sandbox ls"
            )
        return sandbox.node_id

    async def page(self, actor: Actor, labels: dict[str, str] | None, state: str, limit: int, after: str) -> Listing:
        """SandboxBody each, by id; ended ones only when asked for."""
        limit = max(1, min(limit, PAGE_MAX))
        if state and state not in set(SandboxState):
            raise InvalidError(f"{state!r} is no state of a sandbox", hint=f"one of {', '.join(SandboxState)}")
        if state == SandboxState.ENDED:
            found = await self._ended(actor, labels or {}, limit + 1, after)
        else:
            found = self._present(actor, labels or {}, state, limit + 1, after)
        items = [sandbox.body() for sandbox in found[:limit]]
        return Listing(items, found[limit - 1].id if len(found) > limit else "")

    def _present(self, actor: Actor, labels: dict[str, str], state: str, limit: int, after: str) -> list[Sandbox]:
        found = [
            one
            for one in self.book.sandboxes.values()
            if one.alive and one.id > after and _may_see(actor, one) and (not state or one.state == state)
        ]
        if labels:
            found = [one for one in found if labels.items() <= one.kit.labels.items()]
        return sorted(found, key=lambda one: one.id)[:limit]

    async def _ended(self, actor: Actor, labels: dict[str, str], limit: int, after: str) -> list[Sandbox]:
        await self._flush()
        table = schema.sandboxes
        query = select(table).where(table.c.state == SandboxState.ENDED.value, table.c.id > after).order_by(table.c.id)
        if not actor.is_admin:
            query = query.where(table.c.workspace == actor.workspace)

        def read(connection: Connection) -> list[Sandbox]:
            found: list[Sandbox] = []
            for row in connection.execute(query):
                if labels.items() <= json.loads(row.labels).items():
                    found.append(sandbox_from(row))
                if len(found) == limit:
                    break
            return found

        return await self._store.read(read)

    def _find(self, actor: Actor, sandbox_id: str) -> Sandbox:
        sandbox = self.book.sandboxes.get(sandbox_id)
        if sandbox is None or not _may_see(actor, sandbox):
            raise NotFoundError(f"There is no sandbox {sandbox_id}.", hint="kernpool sandbox ls")
        return sandbox

    def workspace_of(self, sandbox_id: str) -> str | None:
        """The workspace of a sandbox; None when it is unknown."""
        sandbox = self.book.sandboxes.get(sandbox_id)
        return sandbox.kit.workspace if sandbox is not None else None

    # --- time and store ---

    def tick(self) -> None:
        """Write the rows that are behind."""
        self._write_rows()

    def _write_rows(self, then: Callable[[], None] | None = None) -> None:
        said, self._notes = self._notes, []
        notes = [self._events.make(actor, verb, "sandbox/*", space, data=data) for actor, verb, space, data in said]
        unsaved = self.book.take_unsaved()
        while notes or unsaved:
            part, unsaved = unsaved[:ROWS_PER_COMMIT], unsaved[ROWS_PER_COMMIT:]
            self._commits.later([sandbox.put() for sandbox in part], notes)
            notes = []
        if then is not None:
            self._commits.later([], [], then)

    async def _flush(self) -> None:
        """Wait until the rows that are behind are written, for a while."""
        written = asyncio.Event()
        self._write_rows(written.set)
        try:
            async with asyncio.timeout(self._reply_timeout_s):
                await written.wait()
        except TimeoutError:
            logger.warning("the store takes no rows: answered without waiting for it")

    async def prune(self) -> None:
        """Keep the newest ended rows alone."""
        table = schema.sandboxes
        newest = (
            select(table.c.ended_unix_s)
            .where(table.c.state == SandboxState.ENDED.value)
            .order_by(table.c.ended_unix_s.desc())
            .offset(ENDED_ROWS_KEPT)
            .limit(1)
        )
        horizon = await self._store.read(lambda connection: connection.execute(newest).scalar())
        if horizon is not None:
            old = (table.c.state == SandboxState.ENDED.value) & (table.c.ended_unix_s <= horizon) & ~table.c.doomed
            await self._store.write([Run(delete(table).where(old))])

    def note(self, actor: str, verb: str, workspace: str, data: Json) -> None:
        """Write an event with the next rows. It is numbered then: followers must see numbers grow."""
        self._notes.append((actor, verb, workspace, data))


def _may_see(actor: Actor, sandbox: Sandbox) -> bool:
    return actor.is_admin or actor.workspace == sandbox.kit.workspace
