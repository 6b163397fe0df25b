"""What runs on this machine, opened and taken over: the part of the agent that needs no coordinator.

    lock -> owner's ceiling -> journal and fences -> spawner and sandboxes -> jobs -> adopt

Leaving it detaches: all work goes on under kp-init, and the next agent adopts it again.
"""

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import final

from kernpool_agent import ceiling as owner
from kernpool_agent import machine, records
from kernpool_agent.attempts import Attempts
from kernpool_agent.capacity import Capacity
from kernpool_agent.ceiling import Ceiling
from kernpool_agent.clock import CoordinatorClock
from kernpool_agent.config import Config
from kernpool_agent.errors import JournalError
from kernpool_agent.fences import Fences, Phase
from kernpool_agent.gpu.client import GpuClient
from kernpool_agent.inventory import InventoryTaker, total
from kernpool_agent.jobs.runtime import JobConfig, JobRuntime
from kernpool_agent.journal import Journal
from kernpool_agent.metrics import Metrics
from kernpool_agent.sandboxes import Sandboxes
from kernpool_agent.spawner import runtime_config
from kernpool_agent.statedir import StateDir
from kernpool_agent.uplink import Uplink
from kernpool_mesh.messages import SandboxState, SandboxStatus
from kernpool_sandbox.config import raise_open_files_limit
from kernpool_sandbox.runtime import SandboxRuntime

log = logging.getLogger(__name__)


@final
@dataclass(slots=True)
class Node:
    """The parts, all open. Made by `open_node` only."""

    config: Config
    ceiling: Ceiling
    state_dir: StateDir
    uplink: Uplink
    clock: CoordinatorClock
    capacity: Capacity
    journal: Journal
    runtime: SandboxRuntime
    jobs: JobRuntime
    attempts: Attempts
    sandboxes: Sandboxes
    gpus: GpuClient
    inventory: InventoryTaker
    metrics: Metrics
    ownership: "_Ownership"

    @property
    def sandboxes_running(self) -> int:
        """How many sandboxes live."""
        return sum(status.state is not SandboxState.ENDED for status in self.runtime.sandboxes())

    async def end_all_work(self) -> None:
        """End every job and sandbox and the spawner; returns when nothing of them is left."""
        log.info("ending all work on this node")
        await self.attempts.end_all()
        await self.ownership.end()


@asynccontextmanager
async def open_node(config: Config) -> AsyncIterator[Node]:
    """Open everything and adopt what runs; leaving the context detaches.

    Raises StateDirBusyError, ConfigError and other FatalErrors, JournalError, SandboxError.
    """
    async with AsyncExitStack() as stack:
        state_dir = StateDir.hold(config.state_dir)
        stack.callback(state_dir.close)
        raise_open_files_limit()
        allowed = owner.load(config.node_file)
        uplink, clock, metrics = Uplink(), CoordinatorClock(), Metrics()
        fences = Fences()
        journal = await stack.enter_async_context(_journal(config.state_dir / "journal", fences))
        seen = machine.look(config.work_dir)
        capacity = Capacity(total(seen, config, []))
        attempts = Attempts(
            fences=fences,
            journal=journal,
            capacity=capacity,
            uplink=uplink,
            ended_max=config.ended_attempts_max,
        )
        early = _EarlyUpdates()
        user = owner.job_user(allowed, config.jobs_as)
        runtime = await SandboxRuntime.open(runtime_config(config, allowed, user), on_update=early.on_update)
        ownership = _Ownership(runtime)
        stack.push_async_callback(ownership.let_go)
        sandboxes = Sandboxes(
            runtime=runtime,
            capacity=capacity,
            uplink=uplink,
            check_template=allowed.check_template,
            creates_at_once=config.creates_at_once,
            cpu_millis_default=config.sandbox_cpu_millis,
            memory_mib_default=config.sandbox_memory_mib,
            on_ready=metrics.sandbox_ready,
        )
        stack.push_async_callback(sandboxes.close)
        log.info(sandboxes.adopt())
        early.sandboxes = sandboxes
        jobs = await JobRuntime.open(
            JobConfig(state_dir=config.work_dir, user=user),
            runtime.living_spawner,
            runtime.cgroups,
            on_update=attempts.on_update,
            accepted=[attempt.accepted.key for attempt in fences.in_phase(Phase.ACCEPTED)],
        )
        stack.push_async_callback(jobs.close)
        log.info(attempts.adopt(jobs))
        stack.push_async_callback(attempts.close)
        gpus = GpuClient(config.gpu_call_timeout_s, enabled=config.gpu == "auto" and allowed.allow_gpu)
        stack.push_async_callback(gpus.close)
        inventory = InventoryTaker(config, allowed, gpus, runtime.isolation)
        yield Node(
            config, allowed, state_dir, uplink, clock, capacity, journal, runtime, jobs, attempts, sandboxes, gpus,
            inventory, metrics, ownership,
        )  # fmt: skip


@final
class _Ownership:
    """The sandbox runtime is closed once: by letting it go, or by ending all that is in it."""

    def __init__(self, runtime: SandboxRuntime) -> None:
        self._runtime: SandboxRuntime | None = runtime

    async def end(self) -> None:
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            await runtime.shutdown()

    async def let_go(self) -> None:
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            await runtime.close()


@final
class _EarlyUpdates:
    """What the runtime reports while it opens is counted by `adopt` afterwards."""

    def __init__(self) -> None:
        self.sandboxes: Sandboxes | None = None

    def on_update(self, statuses: list[SandboxStatus]) -> None:
        if self.sandboxes is not None:
            self.sandboxes.on_update(statuses)


@asynccontextmanager
async def _journal(path: Path, fences: Fences) -> AsyncIterator[Journal]:
    """Open the journal and replay it into the fences."""
    journal, payloads = Journal.open(path, lambda: map(records.encode, fences.snapshot()))
    try:
        fences.restore(_decoded(path, payloads))
        log.info("journal: %d records, %r", len(payloads), fences)
        yield journal
    finally:
        await journal.close()


def _decoded(path: Path, payloads: list[bytes]) -> Iterator[records.Record]:
    for payload in payloads:
        try:
            record = records.decode(payload)
        except JournalError as error:
            raise JournalError(f"{path}: {error}; move it away to start with an empty one") from error
        if record is not None:
            yield record
