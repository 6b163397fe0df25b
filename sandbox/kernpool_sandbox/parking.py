"""Does what the parked pools decide: makes sandboxes ahead in the background, ends those that are too many.

Also makes the cold ones, a bounded number at a time; they go before any parking.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, final

from kernpool_mesh.messages import PoolTarget, Template
from kernpool_sandbox.errors import SandboxError, StartError
from kernpool_sandbox.pool import Drain, Park, ParkedPools, PoolStatistics, Target
from kernpool_sandbox.slot import Slot
from kernpool_sandbox.startup import Parts
from kernpool_sandbox.template import PlannedTemplate

HOUSEKEEPING_S = 60.0
POKE_DELAY_S = 0.004
"""So long after a change the pools decide: once for all changes meanwhile, after the command that follows a claim."""

log = logging.getLogger(__name__)


@final
class Parking:
    """The shell around ParkedPools."""

    def __init__(self, parts: Parts, on_dead: Callable[[Slot], None]) -> None:
        self._parts = parts
        self._maker = parts.maker
        self._planner = parts.planner
        self._on_dead = on_dead
        self._loop = asyncio.get_running_loop()
        self._pools = ParkedPools(parts.config.pool)
        self._cold = asyncio.Semaphore(parts.config.cold_concurrency)
        self._cold_waiting = 0
        """Cold creates under way; while there are any nothing is parked."""
        self._timer: asyncio.TimerHandle | None = None
        self._poked = False
        """`_advance` is about to run."""
        self._targets: list[PoolTarget] = []
        self._host_digest = ""
        """The host image that plans were last made for."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    # --- handing out ---

    def claim(self, key: str) -> str | None:
        """Return a parked slot for a new sandbox of this template, or None: make it cold."""
        name = self._pools.claim(key, self._loop.time())
        self.poke()
        return name if name is None or not self._maker.slots[name].dead else self.claim_another(key)

    def claim_another(self, key: str) -> str | None:
        """The parked one that `claim` gave had just died: return another, or None."""
        self._pools.ended(key)
        return self.claim(key)

    def put_back(self, slot: Slot) -> None:
        """A parked slot could not be handed out for a reason that is not its own."""
        self._pools.returned(slot.key, slot.name)
        self.poke()

    async def make_cold(self, key: str) -> Slot:
        """Make a slot now. SandboxError."""
        planned, template = self._plan(key)
        self._cold_waiting += 1
        try:
            async with self._cold:
                return await self._maker.make(planned, template, self._on_dead)
        finally:
            self._cold_waiting -= 1
            self.poke()

    def adopted(self, key: str) -> None:
        """A living sandbox of this template was taken over."""
        self._pools.adopted(key)

    def ended(self, key: str) -> None:
        """A sandbox of this template is over, or could not be made."""
        self._pools.ended(key)
        self.poke()

    def lost(self, slot: Slot) -> None:
        """A slot that nobody had claimed died."""
        if self._pools.lost(slot.key, slot.name):
            log.warning("the parked sandbox %s died by itself", slot.name)

    # --- targets ---

    def set_targets(self, targets: list[PoolTarget]) -> None:
        """Keep exactly these; their images are prepared in the background first."""
        self._targets = list(targets)
        self._spawn(self._apply_targets())

    async def _apply_targets(self) -> None:
        wanted = self._targets
        found = {}
        for target in wanted:
            try:
                planned = self._planner.known(target.template) or await self._planner.plan(target.template)
            except SandboxError as error:
                log.warning("no pool can be parked of %s: %s", target.template, error)
                continue
            found[planned.key] = Target(target.parked, target.drain_after_s)
        if wanted is self._targets:
            self._pools.set_targets(found, self._loop.time())
            self.poke()

    # --- what it says about itself ---

    @property
    def parked_total(self) -> int:
        """How many stand parked."""
        return self._pools.parked_total

    def memory_bytes(self) -> int:
        """Return what the cgroups of the parked ones hold together; -1 without cgroups."""
        cgroups = self._parts.cgroups
        if cgroups.tree.kind == "none":
            return -1
        names = (self._maker.slots[name].lease.name for name in self._pools.slots())
        return sum(max(0, cgroups.usage(name).memory_bytes) for name in names)

    def statistics(self) -> Iterable[PoolStatistics]:
        """One record a pool."""
        return self._pools.statistics(self._loop.time())

    # --- opening and closing ---

    def start(self) -> None:
        """Begin to look after the host image and the pools."""
        if self._parts.isolation.works:
            self._spawn(self._keep_house())

    async def drain(self) -> None:
        """End every parked sandbox and park no more; returns when nothing is being made."""
        self._closed = True
        self._stop_timer()
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
        for name in list(self._pools.slots()):
            slot = self._maker.slots[name]
            self._pools.lost(slot.key, name)
            await self._end(slot)

    async def close(self) -> None:
        """Stop parking; those that stand parked end by themselves."""
        self._closed = True
        self._stop_timer()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- doing what the pools decide ---

    def poke(self) -> None:
        """Something changed: let the pools decide soon, once for many changes."""
        if not self._poked and not self._closed:
            self._poked = True
            self._stop_timer()
            self._timer = self._loop.call_later(POKE_DELAY_S, self._advance)

    def _advance(self) -> None:
        self._poked = False
        if self._closed or self._cold_waiting:
            return  # the last cold create pokes again
        for instruction in self._pools.advance(self._loop.time()):
            match instruction:
                case Park(key, count):
                    for _ in range(count):
                        self._spawn(self._park(key))
                case Drain(_, names):
                    for name in names:
                        self._spawn(self._end(self._maker.slots[name]))
        self._set_timer()

    def _set_timer(self) -> None:
        self._stop_timer()
        now_s = self._loop.time()
        at_s = self._pools.wakeup_s(now_s)
        if at_s is not None:
            self._timer = self._loop.call_at(max(at_s, now_s + 0.001), self._advance)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _park(self, key: str) -> None:
        try:
            planned, template = self._plan(key)
            slot = await self._maker.make(planned, template, self._on_dead)
        except (SandboxError, OSError) as error:
            log.warning("a sandbox could not be parked: %s", error)
            self._pools.park_failed(key, self._loop.time(), str(error))
        except asyncio.CancelledError:
            self._pools.park_failed(key, self._loop.time(), "given up")
            raise
        else:
            self._pools.parked(key, slot.name)
            if slot.dead:
                self._pools.lost(key, slot.name)
        self._advance()  # at once, so that a refill goes on without pauses

    async def _end(self, slot: Slot) -> None:
        if not slot.dead:
            await self._maker.kill(slot)

    def _plan(self, key: str) -> tuple[PlannedTemplate, Template]:
        found = self._planner.by_key(key)
        if found is None:
            raise StartError(f"template {key} is not known any more; ask again")
        return found

    # --- now and then ---

    async def _keep_house(self) -> None:
        """Prepare the host image before anybody asks, and notice when the host's programs change."""
        parts = self._parts
        while True:
            try:
                await parts.images.host()
            except SandboxError as error:
                log.warning("the host image cannot be prepared: %s", error)
            digest = parts.images.known_host_digest()
            if self._host_digest and digest != self._host_digest:
                log.info("the host's programs changed: new sandboxes see image %s", digest)
                self._planner.forget()
                await self._apply_targets()
            if digest:
                self._host_digest = digest
                parts.remove_unused_images()
            await asyncio.sleep(HOUSEKEEPING_S)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the parked pool met a fault", exc_info=error)
