"""The sandboxes of one node: created from a parked pool or cold, used, ended, adopted. The thin asyncio shell.

What happens is decided by the machines without I/O (lifecycle, pool, reconcile); this class feeds them events and does
what they say. One runtime owns one state directory.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self, final

from kernpool_mesh.messages import Command, CommandResult, PoolTarget, SandboxStatus, Template
from kernpool_mesh.reasons import EndReason
from kernpool_sandbox import commands
from kernpool_sandbox.adoption import ended_sandbox, living_sandbox
from kernpool_sandbox.cgroups import CgroupTree
from kernpool_sandbox.config import RuntimeConfig
from kernpool_sandbox.errors import (
    SandboxEndedError,
    SandboxError,
    SandboxNotFoundError,
    StartError,
    TemplateError,
)
from kernpool_sandbox.files import SandboxFiles
from kernpool_sandbox.isolation import NodeIsolation
from kernpool_sandbox.journal import Claim
from kernpool_sandbox.kpinit.errors import KpInitError
from kernpool_sandbox.kpinit.spawner import SpawnerClient
from kernpool_sandbox.lifecycle import (
    Failed,
    InitGone,
    Instruction,
    KillSlot,
    Phase,
    Ready,
    Released,
    ReleaseSlot,
    RemoveAsked,
    Report,
    Sandbox,
    SandboxTable,
)
from kernpool_sandbox.parking import Parking
from kernpool_sandbox.pool import PoolStatistics
from kernpool_sandbox.reporting import Reporting, ended_error
from kernpool_sandbox.runner import SIGKILL_CODE, Process
from kernpool_sandbox.slot import Slot
from kernpool_sandbox.startup import Parts, open_parts

TTL_S_MAX = 30 * 86400.0

log = logging.getLogger(__name__)


@final
@dataclass(frozen=True, slots=True)
class RuntimeStatistics:
    """What the runtime holds now, and how it served so far."""

    running: int
    starting: int
    parked: int
    ended_total: int
    created_parked_total: int
    created_cold_total: int
    create_errors_total: int
    cgroups_in_use: int
    cgroups_spare: int
    pools: tuple[PoolStatistics, ...]


@final
class SandboxRuntime:
    """Every sandbox of this node. All methods belong to the event loop that opened it."""

    def __init__(self, parts: Parts, on_update: Callable[[list[SandboxStatus]], None]) -> None:
        """Use `open`."""
        self._parts = parts
        self._config = parts.config
        self._journal = parts.journal
        self._maker = parts.maker
        self._planner = parts.planner
        self._loop = asyncio.get_running_loop()
        self._table = SandboxTable()
        self._parking = Parking(parts, self._slot_died)
        self._reporting = Reporting(self._table, on_update)
        self._tasks: set[asyncio.Task[None]] = set()
        """Removals and idle checks under way."""
        self._removals = asyncio.Semaphore(parts.config.removal_concurrency)
        self._created_parked = self._created_cold = self._create_errors = 0
        self._early_deaths: list[Slot] | None = []
        """Slots that died while the runtime was being opened; None once it is open."""
        self._closed = False

    @classmethod
    async def open(cls, config: RuntimeConfig, *, on_update: Callable[[list[SandboxStatus]], None]) -> Self:
        """Start or find the spawner, adopt or sweep what an earlier agent left, and get ready.

        `on_update` is called in the event loop with sandboxes that have ended. Works on a node that cannot isolate
        (then `isolation` says why and `create` refuses). Raises StateBusyError, StartError, OSError.
        """
        parts = await open_parts(config)
        runtime = cls(parts, on_update)
        try:
            await runtime._adopt()
        except BaseException:
            await runtime.close()
            raise
        return runtime

    # --- what it is made of ---

    @property
    def isolation(self) -> NodeIsolation:
        """What this node can isolate, and why not."""
        return self._parts.isolation

    @property
    def spawner(self) -> SpawnerClient:
        """The connection to the node's spawner, for jobs."""
        return self._parts.spawning.client

    async def living_spawner(self) -> SpawnerClient:
        """Return the connection to a spawner that answers, starting one if the last one died, for jobs. KpInitError."""
        return await self._parts.spawning.connect()

    @property
    def cgroups(self) -> CgroupTree:
        """The node's cgroups, for jobs: they choose names that begin with `j`, and adopt and sweep their own."""
        return self._parts.cgroups.tree

    # --- creating ---

    async def create(
        self,
        sandbox_id: str,
        template: Template,
        *,
        ttl_s: float,
        idle_s: float = 0.0,
        env: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        workspace: str = "default",
        owner: str = "",
    ) -> SandboxStatus:
        """Claim a parked sandbox or make one, and return it running. Idempotent: one that is known is returned.

        SandboxError: TemplateError, ImageError, IsolationError, NoCapacityError, JournalFullError, StartError;
        SandboxEndedError when it was removed meanwhile, or lived before.
        """
        known = self._table.find(sandbox_id)
        if known is not None:
            return await self._reporting.settled(known)
        if not 0 < ttl_s <= TTL_S_MAX:
            raise TemplateError(f"a time to live of {ttl_s} s is not between 0 and {TTL_S_MAX:.0f} s")
        planned = self._planner.known(template)
        if planned is None:
            planned = await self._planner.plan(template)
            if (known := self._table.find(sandbox_id)) is not None:
                return await self._reporting.settled(known)
        sandbox = Sandbox(
            sandbox_id, planned.key, template, dict(labels or {}), workspace, owner, ttl_s=ttl_s, idle_s=idle_s
        )
        self._table.add(sandbox)
        try:
            slot, parked = await self._serve(sandbox, {**template.env, **env} if env else template.env)
        except asyncio.CancelledError:
            self._fail(sandbox, EndReason.CANCELLED, "its creation was given up")
            raise
        except SandboxError as error:
            self._create_errors += 1
            self._fail(sandbox, EndReason.START_FAILED, str(error))
            raise
        return self._handed_out(sandbox, slot, parked=parked)

    async def _serve(self, sandbox: Sandbox, env: Mapping[str, str]) -> tuple[Slot, bool]:
        """Return a slot that belongs to this sandbox now: parked ones first, a fresh one else."""
        name = self._parking.claim(sandbox.key)
        while name is not None:
            slot = self._maker.slots[name]
            try:
                await self._claim(slot, sandbox, env, parked=True)
            except KpInitError:
                name = self._parking.claim_another(sandbox.key)  # it died as it was claimed
                continue
            return slot, True
        slot = await self._parking.make_cold(sandbox.key)
        try:
            await self._claim(slot, sandbox, env, parked=False)
        except KpInitError as error:
            raise StartError(f"a fresh sandbox could not be handed out: {error}") from error
        return slot, False

    async def _claim(self, slot: Slot, sandbox: Sandbox, env: Mapping[str, str], *, parked: bool) -> None:
        now_unix_s = sandbox.started_unix_s = time.time()
        claim = Claim(
            sandbox.sandbox_id,
            sandbox.ttl_s,
            sandbox.idle_s,
            now_unix_s,
            now_unix_s + sandbox.ttl_s,
            parked,
            sandbox.labels,
            sandbox.workspace,
            sandbox.owner,
        )
        try:
            self._journal.claim(slot.name, claim)
        except BaseException:
            self._parking.put_back(slot)
            raise
        try:
            await slot.client.claim(sandbox.sandbox_id, ttl_s=sandbox.ttl_s, env=env)
        except OSError as error:
            self._discard(slot)
            raise StartError(f"the sandbox refused to be handed out: {error}") from error
        except BaseException:
            self._discard(slot)
            raise

    def _handed_out(self, sandbox: Sandbox, slot: Slot, *, parked: bool) -> SandboxStatus:
        if parked:
            self._created_parked += 1
        else:
            self._created_cold += 1
        slot.claimed_by = sandbox.sandbox_id
        slot.touch()
        self._perform(self._table.handle(sandbox.sandbox_id, Ready(slot.name, parked, sandbox.started_unix_s)))
        if slot.dead:
            self._slot_died(slot)
        if sandbox.phase is not Phase.RUNNING:
            raise ended_error(sandbox)
        if sandbox.idle_s > 0:
            self._loop.call_later(sandbox.idle_s, self._check_idle, sandbox)
        return sandbox.status()

    def _fail(self, sandbox: Sandbox, reason: EndReason, detail: str) -> None:
        self._parking.ended(sandbox.key)
        self._perform(self._table.handle(sandbox.sandbox_id, Failed(reason, detail)))

    def _discard(self, slot: Slot) -> None:
        """End a slot that nobody can be given any more."""
        if not slot.dead:
            self._spawn_task(self._kill(slot))

    # --- using ---

    async def run(self, sandbox_id: str, command: Command) -> CommandResult:
        """Run a command to its end and return its bounded output. Whatever the command does is in the result.

        A sandbox that ends meanwhile is a result with that reason. SandboxNotFoundError, SandboxEndedError when it was
        over before.
        """
        started_s = time.monotonic()
        sandbox, slot = await self._serving(sandbox_id)
        try:
            return await commands.run(slot, sandbox.template, command, started_s=started_s)
        except KpInitError as error:
            why = await self._reporting.why_ended(sandbox, error)
            if isinstance(why, SandboxEndedError):
                return CommandResult(why.reason, SIGKILL_CODE, detail=why.detail)
            raise why from error

    async def exec(self, sandbox_id: str, command: Command, *, stdin: bool) -> Process:
        """Start a command and return its streams; `command.stdin` is written first. The caller closes the process.

        One that cannot start is a process that is over, with the reason in its result. SandboxNotFoundError,
        SandboxEndedError.
        """
        started_s = time.monotonic()
        sandbox, slot = await self._serving(sandbox_id)
        try:
            return await commands.stream(slot, sandbox.template, command, started_s=started_s, stdin=stdin)
        except KpInitError as error:
            raise await self._reporting.why_ended(sandbox, error) from error

    def files(self, sandbox_id: str) -> SandboxFiles:
        """Return the files of a running sandbox, as its template's user. SandboxNotFoundError, SandboxEndedError."""
        sandbox = self._table.get(sandbox_id)
        slot = self._slot_of(sandbox)

        return SandboxFiles(slot.client, sandbox.template.user, slot.touch, lambda: ended_error(sandbox))

    async def connect(self, sandbox_id: str, port: int) -> socket.socket:
        """Open a TCP connection to a port inside, connected and non-blocking. OSError from inside (ECONNREFUSED)."""
        sandbox, slot = await self._serving(sandbox_id)
        slot.touch()
        try:
            return await slot.client.connect(port)
        except KpInitError as error:
            raise await self._reporting.why_ended(sandbox, error) from error

    async def extend(self, sandbox_id: str, ttl_s: float) -> SandboxStatus:
        """Set a sandbox's time to live anew, counted from now. JournalFullError leaves it as it was."""
        if not 0 < ttl_s <= TTL_S_MAX:
            raise TemplateError(f"a time to live of {ttl_s} s is not between 0 and {TTL_S_MAX:.0f} s")
        sandbox, slot = await self._serving(sandbox_id)
        expires_unix_s = time.time() + ttl_s
        self._journal.extend(slot.name, ttl_s, expires_unix_s)
        try:
            await slot.client.extend(ttl_s)
        except (KpInitError, OSError) as error:
            raise await self._reporting.why_ended(sandbox, error) from error
        sandbox.ttl_s, sandbox.expires_unix_s = ttl_s, expires_unix_s
        return sandbox.status()

    # --- ending ---

    async def remove(
        self, sandbox_ids: Iterable[str], reason: EndReason = EndReason.CANCELLED, detail: str = ""
    ) -> None:
        """End sandboxes; returns when nothing of them is left. Unknown and ended ones count as done.

        StartError names those that did not go within `remove_timeout_s`; their end goes on in the background.
        """
        going = [sandbox for one in sandbox_ids if (sandbox := self._table.find(one)) is not None]
        for sandbox in going:
            self._perform(self._table.handle(sandbox.sandbox_id, RemoveAsked(reason, detail)))
        try:
            async with asyncio.timeout(self._config.remove_timeout_s):
                for sandbox in going:
                    while sandbox.phase is not Phase.ENDED:
                        await self._reporting.change(sandbox)
        except TimeoutError:
            late = ", ".join(sandbox.sandbox_id for sandbox in going if sandbox.phase is not Phase.ENDED)
            raise StartError(f"not gone after {self._config.remove_timeout_s:.0f} s: {late}") from None

    async def _kill(self, slot: Slot) -> None:
        async with self._removals:
            await self._maker.kill(slot)

    def _slot_died(self, slot: Slot) -> None:
        """A PID 1 is gone, and all in its sandbox with it."""
        if self._early_deaths is not None:
            self._early_deaths.append(slot)
        elif slot.name in self._maker.slots and slot.end is None:
            self._spawn_task(self._bury(slot) if slot.claimed_by else self._bury_unclaimed(slot))

    async def _bury_unclaimed(self, slot: Slot) -> None:
        slot.end = (EndReason.LOST, "")
        self._parking.lost(slot)
        await self._maker.release(slot, None, "")
        self._parking.poke()

    async def _bury(self, slot: Slot) -> None:
        sandbox = self._table.get(slot.claimed_by)
        slot.end = (sandbox.reason or EndReason.LOST, sandbox.detail)
        if sandbox.reason is None:
            slot.end = await self._maker.why(slot)
        reason, detail = (sandbox.reason, sandbox.detail) if sandbox.reason is not None else slot.end
        slot.tell_end(reason, detail)
        self._perform(self._table.handle(sandbox.sandbox_id, InitGone(reason, detail)))

    async def _release(self, slot: Slot) -> None:
        sandbox = self._table.get(slot.claimed_by)
        await self._maker.release(slot, sandbox.reason, sandbox.detail)
        self._parking.ended(sandbox.key)
        self._perform(self._table.handle(sandbox.sandbox_id, Released()))

    def _check_idle(self, sandbox: Sandbox) -> None:
        if sandbox.phase is not Phase.RUNNING or self._closed:
            return
        slot = self._maker.slots[sandbox.slot]
        left_s = slot.last_used_s + sandbox.idle_s - self._loop.time()
        if slot.busy or left_s > 0:
            self._loop.call_later(sandbox.idle_s if slot.busy else left_s, self._check_idle, sandbox)
        else:
            detail = f"not used for {sandbox.idle_s:g} s"
            self._perform(self._table.handle(sandbox.sandbox_id, RemoveAsked(EndReason.IDLE, detail)))

    # --- looking ---

    def sandboxes(self) -> list[SandboxStatus]:
        """Return every living sandbox, and the last ended ones."""
        return [sandbox.status() for sandbox in (*self._table.living(), *self._table.ended())]

    def get(self, sandbox_id: str) -> SandboxStatus:
        """Return one sandbox. SandboxNotFoundError."""
        return self._table.get(sandbox_id).status()

    def set_pools(self, targets: list[PoolTarget]) -> None:
        """Keep exactly these pools parked; all others are drained, and automatic again with their next use."""
        self._parking.set_targets(targets)

    def statistics(self) -> RuntimeStatistics:
        """Return what it holds and how it served."""
        phases = [sandbox.phase for sandbox in self._table.living()]
        return RuntimeStatistics(
            running=phases.count(Phase.RUNNING),
            starting=phases.count(Phase.STARTING),
            parked=self._parking.parked_total,
            ended_total=self._reporting.ended_total,
            created_parked_total=self._created_parked,
            created_cold_total=self._created_cold,
            create_errors_total=self._create_errors,
            cgroups_in_use=self._parts.cgroups.in_use,
            cgroups_spare=self._parts.cgroups.spares,
            pools=tuple(self._parking.statistics()),
        )

    def parked_memory_bytes(self) -> int:
        """Return what the cgroups of the parked ones hold together (reads a file for each); -1 without cgroups."""
        return self._parking.memory_bytes()

    # --- opening and closing ---

    async def _adopt(self) -> None:
        adopted = await self._parts.adoption(self._slot_died)
        for record in self._journal.state.ended.values():
            self._table.add(ended_sandbox(record))
        for one in adopted:
            sandbox = living_sandbox(one)
            self._table.add(sandbox)
            self._parking.adopted(sandbox.key)
            one.slot.touch()
            if sandbox.idle_s > 0:
                self._loop.call_later(sandbox.idle_s, self._check_idle, sandbox)
        early, self._early_deaths = self._early_deaths or [], None
        for slot in early:
            self._slot_died(slot)
        self._parking.start()

    async def close(self) -> None:
        """Let go: claimed sandboxes go on until their deadlines, parked ones end by themselves."""
        self._closed = True
        await self._parking.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._config.remove_timeout_s)
        for slot in self._maker.slots.values():
            slot.close()
        await self._parts.close()

    async def shutdown(self) -> None:
        """End every sandbox, remove what is spare, and stop the spawner."""
        self._closed = True
        await self._parking.drain()
        await self.remove([sandbox.sandbox_id for sandbox in list(self._table.living())], EndReason.CANCELLED)
        await self._all_gone()
        self._parts.cgroups.remove_spares()
        await self._parts.stop_spawner()
        await self.close()

    async def _all_gone(self) -> None:
        """Wait until every slot was given back. StartError after `remove_timeout_s`."""
        deadline_s = self._loop.time() + self._config.remove_timeout_s
        while self._maker.slots:
            if self._loop.time() > deadline_s:
                raise StartError(
                    f"not gone after {self._config.remove_timeout_s:.0f} s: {', '.join(self._maker.slots)}"
                )
            await (asyncio.wait(self._tasks, timeout=0.1) if self._tasks else asyncio.sleep(0.001))

    # --- doing what the machines say ---

    def _perform(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case KillSlot(name):
                    slot = self._maker.slots[name]
                    if slot.dead:
                        self._slot_died(slot)
                    else:
                        self._spawn_task(self._kill(slot))
                case ReleaseSlot(name):
                    self._spawn_task(self._release(self._maker.slots[name]))
                case Report(sandbox_id):
                    self._reporting.report(sandbox_id)

    async def _serving(self, sandbox_id: str) -> tuple[Sandbox, Slot]:
        sandbox = self._table.get(sandbox_id)
        if sandbox.phase is Phase.STARTING:
            await self._reporting.settled(sandbox)
        return sandbox, self._slot_of(sandbox)

    def _slot_of(self, sandbox: Sandbox) -> Slot:
        if sandbox.phase is Phase.STARTING:
            raise SandboxNotFoundError(f"sandbox {sandbox.sandbox_id} is still being made")
        if sandbox.phase is not Phase.RUNNING:
            raise ended_error(sandbox)
        return self._maker.slots[sandbox.slot]

    def _spawn_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a sandbox's end went wrong", exc_info=error)
