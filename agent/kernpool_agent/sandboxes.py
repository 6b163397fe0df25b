"""The coordinator's word to the sandbox runtime: bulk creates with a result per sandbox, removals, extensions, pools.

All sandboxes of a request are made at the same time but for a bound; each answers as soon as it can. A request that is
repeated (its answer was lost) makes nothing twice: the sandbox id decides.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from typing import Protocol, final

from kernpool_agent.capacity import Capacity, Need, sandbox_need
from kernpool_agent.errors import AgentError, RefusedError
from kernpool_agent.items import ItemCollector, bounded
from kernpool_agent.uplink import Uplink
from kernpool_mesh.messages import (
    Command,
    CommandResult,
    CreateSandboxes,
    ExtendSandbox,
    PoolTarget,
    RemoveSandboxes,
    Reply,
    SandboxItem,
    SandboxItems,
    SandboxState,
    SandboxStatus,
    SandboxUpdate,
    SetPools,
    Template,
)
from kernpool_mesh.reasons import EndReason
from kernpool_sandbox.errors import SandboxEndedError, SandboxError, SandboxNotFoundError

log = logging.getLogger(__name__)

UPDATE_SANDBOXES = 40
"""Sandboxes in one SandboxUpdate: each is some 250 bytes, a frame has 16 KiB."""
NO_EXIT_CODE = 255
"""Told where a command had no exit status of its own."""
RESULTS_KEPT_MAX = 1024
"""Results remembered for requests that are repeated."""
RESULT_KEPT_BYTES_MAX = 16 * 1024
"""A result with more output is not remembered: a repeated request gets an error that says so."""


class Runtime(Protocol):
    """What makes and runs sandboxes: `kernpool_sandbox.runtime.SandboxRuntime`."""

    async def create(
        self,
        sandbox_id: str,
        template: Template,
        *,
        ttl_s: float,
        idle_s: float = 0,
        env: dict[str, str],
        labels: dict[str, str],
        workspace: str,
        owner: str,
    ) -> SandboxStatus:
        """Make or claim one; raises SandboxError."""
        ...

    async def run(self, sandbox_id: str, command: Command) -> CommandResult:
        """Run a command to its end; raises SandboxError only when there is no such sandbox."""
        ...

    async def remove(self, sandbox_ids: list[str], reason: EndReason) -> None:
        """Return when nothing of them is left; unknown ids count as done."""
        ...

    async def extend(self, sandbox_id: str, ttl_s: float) -> SandboxStatus:
        """Set the time to live anew; raises SandboxError."""
        ...

    def get(self, sandbox_id: str) -> SandboxStatus:
        """Return one that lives or ended lately; raises SandboxNotFoundError."""
        ...

    def sandboxes(self) -> list[SandboxStatus]:
        """Return all that live and those that ended lately."""
        ...

    def set_pools(self, pools: list[PoolTarget]) -> None:
        """Keep exactly these pools."""
        ...


@final
class Sandboxes:
    """The node's sandboxes. Feed it the coordinator's messages and the runtime's updates."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        capacity: Capacity,
        uplink: Uplink,
        check_template: Callable[[Template], None],
        creates_at_once: int,
        cpu_millis_default: int,
        memory_mib_default: int,
        on_ready: Callable[[float], None] = lambda _seconds: None,
    ) -> None:
        self._runtime = runtime
        self._capacity = capacity
        self._uplink = uplink
        self._check_template = check_template
        """The owner's ceiling: raises RefusedError."""
        self._slots = asyncio.Semaphore(creates_at_once)
        """Creates under way, of all requests together."""
        self._defaults = (cpu_millis_default, memory_mib_default)
        self._on_ready = on_ready
        """Told the seconds from receipt to ready of each sandbox made."""
        self._making: dict[str, asyncio.Future[None]] = {}
        """Sandboxes that are made or whose command runs; a repeated request waits for the same one."""
        self._to_remove: list[str] = []
        """Sandboxes whose command has just ended."""
        self._results: OrderedDict[str, CommandResult] = OrderedDict()
        """Last results by sandbox id, for repeated requests; bounded."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.created = 0
        self.refused = 0

    def adopt(self) -> str:
        """Count what the runtime found running at start; returns one sentence."""
        living = [status for status in self._runtime.sandboxes() if status.state is not SandboxState.ENDED]
        for status in living:
            self._capacity.adopt(_holder(status.sandbox_id), self._need(status.template))
        return f"sandboxes: {len(living)} adopted"

    def statuses(self) -> list[SandboxStatus]:
        """Return what a snapshot tells: all that live, and the last that ended with their reasons."""
        return self._runtime.sandboxes()

    async def close(self) -> None:
        """Give up requests under way; the sandboxes made so far go on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- the coordinator's messages (called in order, never waiting) ---

    def create(self, message: CreateSandboxes) -> None:
        """Make the sandboxes of a request and answer each by SandboxItems."""
        self._spawn(self._create_all(message, time.monotonic()), f"create {len(message.sandbox_ids)} sandboxes")

    def remove(self, message: RemoveSandboxes) -> None:
        """End sandboxes; answered when nothing of them is left."""
        work = self._runtime.remove(message.sandbox_ids, message.reason)
        self._spawn(self._answer(message.request_id, work), f"remove {len(message.sandbox_ids)} sandboxes")

    def extend(self, message: ExtendSandbox) -> None:
        """Set a time to live anew."""
        work = self._runtime.extend(message.sandbox_id, message.ttl_s)
        self._spawn(self._answer(message.request_id, work), f"extend {message.sandbox_id}")

    def set_pools(self, message: SetPools) -> None:
        """Keep exactly these pools."""
        try:
            for pool in message.pools:
                self._check_template(pool.template)
            self._runtime.set_pools(message.pools)
        except (RefusedError, SandboxError) as error:
            self._uplink.tell(Reply(message.request_id, str(error), error.code))
        else:
            self._uplink.tell(Reply(message.request_id))

    # --- the runtime's updates ---

    def on_update(self, statuses: list[SandboxStatus]) -> None:
        """Tell ends; what was asked for (a start) is told by the answer to who asked."""
        ended = [status for status in statuses if status.state is SandboxState.ENDED]
        for status in ended:
            self._capacity.give_back(_holder(status.sandbox_id))
        for at in range(0, len(ended), UPDATE_SANDBOXES):
            self._uplink.tell(SandboxUpdate(ended[at : at + UPDATE_SANDBOXES]))

    # --- inside ---

    async def _create_all(self, message: CreateSandboxes, received_at: float) -> None:
        if not message.sandbox_ids:
            await self._uplink.send(SandboxItems(message.request_id, [], done=True))
            return
        collector = ItemCollector(message.request_id, len(message.sandbox_ids), self._uplink.send)
        try:
            self._check_template(message.template)
        except RefusedError as error:
            self.refused += len(message.sandbox_ids)
            for sandbox_id in message.sandbox_ids:
                collector.add(SandboxItem(sandbox_id, error=str(error)))
        else:
            once = [self._create_once(id_, message, collector, received_at) for id_ in message.sandbox_ids]
            await asyncio.gather(*once)
        await collector.finish()

    async def _create_once(
        self, sandbox_id: str, message: CreateSandboxes, collector: ItemCollector, received_at: float
    ) -> None:
        earlier = self._making.get(sandbox_id)
        if earlier is not None:
            await asyncio.wait([earlier])
            collector.add(self._known(sandbox_id, message))
        elif self._find(sandbox_id) is not None:
            collector.add(self._known(sandbox_id, message))
        else:
            over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._making[sandbox_id] = over
            try:
                await self._make_and_run(sandbox_id, message, collector, received_at)
            finally:
                del self._making[sandbox_id]
                over.set_result(None)

    async def _make_and_run(
        self, sandbox_id: str, message: CreateSandboxes, collector: ItemCollector, received_at: float
    ) -> None:
        try:
            status = await self._make(sandbox_id, message)
        except Exception as error:  # noqa: BLE001 - the border: every item gets an answer, and the others go on
            collector.add(SandboxItem(sandbox_id, error=self._refusal(sandbox_id, error)))
            return
        ready_s = time.monotonic() - received_at
        self.created += 1
        self._on_ready(ready_s)
        item = SandboxItem(sandbox_id, status, ready_ms=1000 * ready_s)
        if message.command is None:
            collector.add(item)
            return
        collector.add_status(item)
        result = await self._run(sandbox_id, message.command)
        if result.first_output_ms >= 0:
            result.first_output_ms += item.ready_ms  # counted from the receipt of the request
        self._remember(sandbox_id, result)
        collector.add(SandboxItem(sandbox_id, result=result))
        if message.remove_after:
            self._remove_soon(sandbox_id)

    async def _make(self, sandbox_id: str, message: CreateSandboxes) -> SandboxStatus:
        holder = _holder(sandbox_id)
        self._capacity.take(holder, self._need(message.template))
        try:
            async with self._slots:
                return await self._runtime.create(
                    sandbox_id,
                    message.template,
                    ttl_s=message.ttl_s,
                    idle_s=message.idle_s,
                    env=message.env,
                    labels=message.labels,
                    workspace=message.workspace,
                    owner=message.owner,
                )
        except BaseException:
            self._capacity.give_back(holder)
            raise

    async def _run(self, sandbox_id: str, command: Command) -> CommandResult:
        try:
            return bounded(await self._runtime.run(sandbox_id, command))
        except SandboxEndedError as error:
            return CommandResult(error.reason, NO_EXIT_CODE, detail=str(error))
        except Exception as error:  # noqa: BLE001 - the border, as above
            return CommandResult(EndReason.START_FAILED, NO_EXIT_CODE, detail=self._refusal(sandbox_id, error))

    def _refusal(self, sandbox_id: str, error: Exception) -> str:
        if isinstance(error, AgentError | SandboxError):
            self.refused += 1
            log.debug("%s: %s", sandbox_id, error)
            return str(error)
        log.error("%s could not be made by a fault of the agent", sandbox_id, exc_info=error)
        return f"a fault of the agent: {type(error).__name__}: {error}; its log has the details"

    def _known(self, sandbox_id: str, message: CreateSandboxes) -> SandboxItem:
        """Return what a repeated request is told."""
        status = self._find(sandbox_id)
        if status is None:
            return SandboxItem(sandbox_id, error="an earlier try of this request failed; the sandbox is not there")
        if message.command is None:
            return SandboxItem(sandbox_id, status)
        return SandboxItem(sandbox_id, status, self._results.get(sandbox_id) or _unknown_result())

    def _find(self, sandbox_id: str) -> SandboxStatus | None:
        try:
            return self._runtime.get(sandbox_id)
        except SandboxNotFoundError:
            return None

    def _remember(self, sandbox_id: str, result: CommandResult) -> None:
        if len(result.stdout) + len(result.stderr) > RESULT_KEPT_BYTES_MAX:
            return
        self._results[sandbox_id] = result
        while len(self._results) > RESULTS_KEPT_MAX:
            self._results.popitem(last=False)

    def _need(self, template: Template) -> Need:
        cpu, memory = self._defaults
        return sandbox_need(template.limits, cpu_millis_default=cpu, memory_mib_default=memory)

    def _remove_soon(self, sandbox_id: str) -> None:
        """Remove it together with all others whose command ended in the same turn of the loop."""
        self._to_remove.append(sandbox_id)
        if len(self._to_remove) == 1:
            self._spawn(self._remove_gathered(), "remove sandboxes after their command")

    async def _remove_gathered(self) -> None:
        ids, self._to_remove = self._to_remove, []
        await self._runtime.remove(ids, EndReason.EXITED)

    async def _answer(self, request_id: int, work: Awaitable[object]) -> None:
        try:
            await work
        except SandboxError as error:
            self._uplink.tell(Reply(request_id, str(error), error.code))
        else:
            self._uplink.tell(Reply(request_id))

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("%s failed by a fault of the agent", task.get_name(), exc_info=task.exception())


def _holder(sandbox_id: str) -> str:
    return f"sandbox {sandbox_id}"


def _unknown_result() -> CommandResult:
    detail = "its command ran for an earlier try of this request, and its result is no longer known"
    return CommandResult(EndReason.LOST, NO_EXIT_CODE, detail=detail)
