"""Gathers the answers of a bulk create into few messages: what is ready in one turn of the event loop goes together.

A sandbox's status alone may wait a moment: when its command's result comes within it, both travel as one item.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import final

from kernpool_mesh.messages import FRAME_BYTES_MAX, CommandResult, SandboxItem, SandboxItems

STATUS_WAIT_S = 0.02
"""How long a status waits for the result of a command that is just running."""
ITEM_BYTES = 400
"""An item without output, generously."""
RESULT_BYTES_MAX = 3 << 20
"""Output of one result that still fits a message of the link; beyond it is cut and counted."""


@final
class ItemCollector:
    """Collects the items of one request and sends them in order of readiness; the last message says so."""

    def __init__(self, request_id: int, count: int, send: Callable[[SandboxItems], Awaitable[bool]]) -> None:
        self._request_id = request_id
        self._missing = count
        """Sandboxes whose last word is still to come."""
        self._send = send
        self._waiting: dict[str, SandboxItem] = {}
        """Items not yet sent, by sandbox; a result that comes meanwhile joins its status."""
        self._flusher: asyncio.Task[None] | None = None
        """Runs while items are being sent; what is added meanwhile is sent by the same one."""
        self._timer: asyncio.TimerHandle | None = None
        """Runs while only statuses wait."""

    def add_status(self, item: SandboxItem) -> None:
        """Add an item whose command's result is still to come."""
        self._waiting[item.sandbox_id] = item
        if self._timer is None and self._flusher is None:
            self._timer = asyncio.get_running_loop().call_later(STATUS_WAIT_S, self._flush_soon)

    def add(self, item: SandboxItem) -> None:
        """Add the last word about a sandbox; it goes at once."""
        status = self._waiting.get(item.sandbox_id)
        if status is not None and item.status is None:
            item = SandboxItem(item.sandbox_id, status.status, item.result, item.error, status.ready_ms)
        self._waiting[item.sandbox_id] = item
        self._missing -= 1
        self._flush_soon()

    async def finish(self) -> None:
        """Wait until everything is sent; called once the last word about each sandbox was added."""
        assert self._missing == 0, f"{self._missing} sandboxes of request {self._request_id} have no answer"
        if self._flusher is not None:
            await self._flusher

    def _flush_soon(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._flusher is None:
            self._flusher = asyncio.get_running_loop().create_task(self._flush())

    async def _flush(self) -> None:
        try:
            while self._waiting:
                items, self._waiting = list(self._waiting.values()), {}
                *earlier, last = batches(items)
                for batch in earlier:
                    await self._send(SandboxItems(self._request_id, batch))
                done = self._missing == 0 and not self._waiting
                await self._send(SandboxItems(self._request_id, last, done))
        finally:
            self._flusher = None


def batches(items: list[SandboxItem]) -> list[list[SandboxItem]]:
    """Split items so that each message fits a frame, but for single items that are larger by themselves."""
    result: list[list[SandboxItem]] = []
    room = 0
    for item in items:
        size = _size(item)
        if size > room or not result:
            result.append([])
            room = FRAME_BYTES_MAX
        result[-1].append(item)
        room -= size
    return result


def bounded(result: CommandResult) -> CommandResult:
    """Return the result with no more output than a message of the link can carry."""
    excess = len(result.stdout) + len(result.stderr) - RESULT_BYTES_MAX
    if excess <= 0:
        return result
    half = RESULT_BYTES_MAX // 2
    keep_out = max(half, RESULT_BYTES_MAX - len(result.stderr))
    keep_err = RESULT_BYTES_MAX - min(keep_out, len(result.stdout))
    result.stdout_bytes_dropped += max(0, len(result.stdout) - keep_out)
    result.stderr_bytes_dropped += max(0, len(result.stderr) - keep_err)
    result.stdout, result.stderr = result.stdout[:keep_out], result.stderr[:keep_err]
    return result


def _size(item: SandboxItem) -> int:
    size = ITEM_BYTES + len(item.error)
    if item.result is not None:
        size += len(item.result.stdout) + len(item.result.stderr) + len(item.result.detail)
    if item.status is not None:
        size += sum(len(k) + len(v) + 8 for k, v in item.status.labels.items())
        size += sum(len(k) + len(v) + 8 for k, v in item.status.template.env.items())
    return size
