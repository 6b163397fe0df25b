"""One bulk create under way: what was asked of which node, what has come back, and who reads it.

Nodes' messages become batches of ready dicts; a reader takes them as they come. Whatever happens to a node, every id
gets its answer: a status, a result or an error, never silence.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

from kernpool_coordinator.sandboxes.book import Kit, Sandbox, SandboxBook
from kernpool_coordinator.sandboxes.templates import result_body
from kernpool_mesh.messages import SandboxItem
from kernpool_mesh.reasons import EndReason

QUEUE_BYTES_MAX: Final = 64 << 20
"""Of output that a slow reader has not taken; beyond it results come without their output, and say so."""
REPLAY_BYTES_MAX: Final = 4 << 20
"""Of output that is kept for a repeated request when nobody reads."""
CERTAINLY_NOT_MADE: Final = frozenset({"refused", "no_capacity", "busy", "invalid", "internal"})
"""Errors by which a node, or our own queue, says that it did nothing."""

Item = dict[str, Any]
"""A SandboxItemBody, or the SandboxesDone."""


@final
@dataclass(slots=True)
class Part:
    """What one node was asked for in one message."""

    request_id: int
    node_id: str
    open_ids: dict[str, None]
    """Ids without their last answer, in order."""
    unmade_ids: set[str]
    """Ids without a status yet."""


@final
@dataclass(slots=True, eq=False)
class Creation:
    """One bulk create."""

    kit: Kit
    wants_result: bool
    """A command runs in each: its result is the last answer of an id."""
    remove_after: bool
    keyed: bool
    """It has an idempotency key: what is unknown stays pending instead of being removed on its node's return."""
    status_deadline: float
    """Monotonic time by which every id has its status."""
    result_deadline: float
    """Monotonic time by which every id has its last answer."""
    parts: dict[int, Part] = field(default_factory=dict)
    """By request id; gone when complete."""
    log: list[list[Item]] = field(default_factory=list)
    """Batches; those that all readers have taken are emptied unless they are kept for a repeated request."""
    asked: dict[str, list[str]] = field(default_factory=dict)
    """Node id -> all ids asked of it."""
    created: int = 0
    failed: int = 0
    unwanted: dict[str, list[str]] = field(default_factory=dict)
    """Node id -> ids that are to be removed there: removed meanwhile, or given up."""
    sealed: bool = False
    """The last batch is in the log."""
    readers: int = 0
    bytes_waiting: int = 0
    """Output in the log that is held for readers or for a repeated request."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def add_part(self, request_id: int, node_id: str, ids: Iterable[str]) -> None:
        """A node was asked."""
        names = dict.fromkeys(ids)
        self.asked[node_id] = list(names)
        self.parts[request_id] = Part(request_id, node_id, names, set(names))

    def answer_known(self, batch: list[Item]) -> None:
        """Give answers that need no node."""
        self.created += len(batch)
        self._push(batch)

    # --- what nodes tell ---

    def take(
        self, request_id: int, items: Sequence[SandboxItem], book: SandboxBook, unix_s: float, *, done: bool
    ) -> None:
        """Take a node's items."""
        part = self.parts.get(request_id)
        if part is None:
            return
        batch: list[Item] = []
        for item in items:
            sandbox = book.sandboxes.get(item.sandbox_id)
            if sandbox is None or item.sandbox_id not in part.open_ids:
                continue  # answered already, or not of this request
            batch.append(self._answer(part, item, sandbox, book, unix_s))
        self._push(batch)
        if done:
            self.fail_part(request_id, "internal", "its node finished without an answer for it", book, unix_s)
        elif not part.open_ids:
            del self.parts[request_id]

    def _answer(self, part: Part, item: SandboxItem, sandbox: Sandbox, book: SandboxBook, unix_s: float) -> Item:
        name = item.sandbox_id
        shown = new_item(name)
        if item.error:
            book.end(sandbox, EndReason.START_FAILED, item.error, unix_s)
            return self._failed(part, name, shown, "refused", item.error)
        if sandbox.unwanted:
            # The node's create and our removal have crossed: the removal wins, so it is sent again.
            self.unwanted.setdefault(part.node_id, []).append(name)
            return self._failed(part, name, shown, "conflict", "it was removed while it was being made")
        if item.status is not None:
            book.tell(sandbox, item.status, unix_s)
            part.unmade_ids.discard(name)
            shown["sandbox"] = sandbox.body()
            shown["ready_ms"] = item.ready_ms
        if item.result is not None:
            shown["result"] = result_body(item.result)
            if self.remove_after:
                book.end(sandbox, EndReason.EXITED, "removed after its command", unix_s)
        if item.result is not None or not self.wants_result:
            del part.open_ids[name]
            self.created += 1
        return shown

    def _failed(self, part: Part, name: str, shown: Item, code: str, message: str) -> Item:
        del part.open_ids[name]
        part.unmade_ids.discard(name)
        self.failed += 1
        shown["error"] = {"code": code, "message": message, "hint": "", "details": []}
        return shown

    # --- what goes wrong ---

    def fail_part(self, request_id: int, code: str, message: str, book: SandboxBook, unix_s: float) -> None:
        """No more answers will come from a node: each open id gets an error."""
        part = self.parts.get(request_id)
        if part is not None:
            self._fail(part, list(part.open_ids), code, message, book, unix_s)

    def expire(self, mono: float, book: SandboxBook, unix_s: float) -> None:
        """Give errors to the ids whose time is over."""
        for part in list(self.parts.values()):
            if mono >= self.result_deadline:
                self._fail(part, list(part.open_ids), "timeout", "no answer in time", book, unix_s)
            elif mono >= self.status_deadline and part.unmade_ids:
                late = [name for name in part.open_ids if name in part.unmade_ids]
                self._fail(part, late, "timeout", "it was not made in time", book, unix_s)

    def _fail(self, part: Part, ids: Sequence[str], code: str, message: str, book: SandboxBook, unix_s: float) -> None:
        batch: list[Item] = []
        for name in ids:
            made = name not in part.unmade_ids
            sandbox = book.sandboxes[name]
            if not made and code in CERTAINLY_NOT_MADE:
                book.end(sandbox, EndReason.START_FAILED, message, unix_s)
            elif not self.keyed:
                self._give_up(sandbox, book)
            what = f"{message}; its command may have run" if made else message
            batch.append(self._failed(part, name, new_item(name), code, what))
        self._push(batch)
        if not part.open_ids:
            self.parts.pop(part.request_id, None)

    def _give_up(self, sandbox: Sandbox, book: SandboxBook) -> None:
        """It may be there; the caller is told of an error and has no other way to know it, so it must not stay."""
        book.doom(sandbox, EndReason.CANCELLED)
        if sandbox.doomed is None:
            return
        self.unwanted.setdefault(sandbox.node_id, []).append(sandbox.id)

    # --- the reader's side ---

    def _push(self, batch: list[Item]) -> None:
        if not batch:
            return
        size = sum(_output_bytes(item) for item in batch)
        bound = QUEUE_BYTES_MAX if self.readers or not self.keyed else REPLAY_BYTES_MAX
        if size and self.bytes_waiting + size > bound:
            for item in batch:
                _drop_output(item)
            size = 0
        self.bytes_waiting += size
        self.log.append(batch)
        self.wake.set()

    def take_unwanted(self) -> dict[str, list[str]]:
        """Hand out what is to be removed."""
        unwanted, self.unwanted = self.unwanted, {}
        return unwanted

    def seal(self) -> None:
        """Every id has its last answer: add the last batch, and keep no more output than is allowed."""
        self.sealed = True
        self.log.append([{"done": True, "created": self.created, "failed": self.failed}])
        if self.keyed and self.bytes_waiting > REPLAY_BYTES_MAX and not self.readers:
            for batch in self.log:
                for item in batch:
                    _drop_output(item)
            self.bytes_waiting = 0
        self.wake.set()

    async def read(self) -> AsyncIterator[list[Item]]:
        """Give the batches from the first on, as they come, until the last."""
        self.readers += 1
        place = 0
        try:
            while True:
                while place < len(self.log):
                    batch = self.log[place]
                    if not self.keyed:
                        self.log[place] = []
                        self.bytes_waiting -= sum(_output_bytes(item) for item in batch)
                    place += 1
                    yield batch
                if self.sealed:
                    return
                self.wake.clear()
                await self.wake.wait()
        finally:
            self.readers -= 1


def new_item(sandbox_id: str) -> Item:
    """Make a SandboxItemBody without an answer yet."""
    return {"id": sandbox_id, "sandbox": None, "result": None, "error": None, "ready_ms": None}


def _output_bytes(item: Item) -> int:
    result = item.get("result")
    return len(result["stdout_b64"]) + len(result["stderr_b64"]) if result else 0


def _drop_output(item: Item) -> None:
    result = item.get("result")
    if not result:
        return
    for stream in ("stdout", "stderr"):
        kept = len(result[f"{stream}_b64"]) * 3 // 4
        result[f"{stream}_b64"] = ""
        result[f"{stream}_bytes_dropped"] += kept
    result["detail"] = result["detail"] or "its output was dropped: the reader did not keep up"
