"""Tells changes of sandboxes: to whoever waits for one, and, of ends, to the runtime's owner, many in one call."""

import asyncio
from collections.abc import Callable
from typing import final

from kernpool_mesh.messages import SandboxStatus
from kernpool_mesh.reasons import EndReason
from kernpool_sandbox.errors import SandboxEndedError, SandboxError, StartError
from kernpool_sandbox.lifecycle import Phase, Sandbox, SandboxTable

END_WITHIN_S = 5.0
"""A request that met a closed connection waits so long to learn why."""


@final
class Reporting:
    """The waiting side of a SandboxTable."""

    def __init__(self, table: SandboxTable, on_update: Callable[[list[SandboxStatus]], None]) -> None:
        self._table = table
        self._on_update = on_update
        self._loop = asyncio.get_running_loop()
        self._changed: dict[str, None] = {}
        """Sandboxes whose end is still to be told, in order."""
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        """Who waits for the next change of a sandbox."""
        self.ended_total = 0
        """How many have ended since this runtime was opened."""

    def report(self, sandbox_id: str) -> None:
        """The shown state of a sandbox changed."""
        for waiting in self._waiting.pop(sandbox_id, ()):
            if not waiting.done():
                waiting.set_result(None)
        sandbox = self._table.find(sandbox_id)
        if sandbox is None or sandbox.phase is not Phase.ENDED:
            return
        self.ended_total += 1
        if not self._changed:
            self._loop.call_soon(self._tell)
        self._changed[sandbox_id] = None

    async def change(self, sandbox: Sandbox) -> None:
        """Wait for the next change of a sandbox."""
        waiting = self._loop.create_future()
        self._waiting.setdefault(sandbox.sandbox_id, []).append(waiting)
        await waiting

    async def settled(self, sandbox: Sandbox) -> SandboxStatus:
        """Wait until a sandbox that somebody else creates is created, and return it; SandboxEndedError."""
        while sandbox.phase is Phase.STARTING:
            await self.change(sandbox)
        if sandbox.phase is not Phase.RUNNING:
            raise ended_error(sandbox)
        return sandbox.status()

    async def why_ended(self, sandbox: Sandbox, error: Exception) -> SandboxError:
        """Wait for the reason of an end that a request met, and return it as an error."""
        try:
            async with asyncio.timeout(END_WITHIN_S):
                while sandbox.phase is Phase.RUNNING:
                    await self.change(sandbox)
        except TimeoutError:
            return StartError(f"sandbox {sandbox.sandbox_id} does not answer: {error}")
        return ended_error(sandbox)

    def _tell(self) -> None:
        changed, self._changed = self._changed, {}
        found = [sandbox.status() for one in changed if (sandbox := self._table.find(one)) is not None]
        self._on_update(found)


def ended_error(sandbox: Sandbox) -> SandboxEndedError:
    """Return the error that says how a sandbox ended."""
    reason = sandbox.reason or EndReason.LOST
    detail = f" ({sandbox.detail})" if sandbox.detail else ""
    return SandboxEndedError(f"sandbox {sandbox.sandbox_id} is over: {reason}{detail}", reason, sandbox.detail)
