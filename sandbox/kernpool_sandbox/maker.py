"""Makes slots and gives back what they were lent: cgroup, uid range, socket and record. The only user of the spawner.

Everything is journaled before it is made; whatever fails in between leaves nothing behind, or something that is given
back here once its processes are gone.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import final

from kernpool_mesh.messages import Template
from kernpool_mesh.reasons import EndReason
from kernpool_sandbox.cgroup_pool import CgroupLease, CgroupPool
from kernpool_sandbox.config import RuntimeConfig
from kernpool_sandbox.errors import NoCapacityError, StartError
from kernpool_sandbox.journal import Journal, SlotRecord
from kernpool_sandbox.kpinit.errors import KpInitError
from kernpool_sandbox.kpinit.record import EndRecord, end_record_path, parse_end_record
from kernpool_sandbox.reconcile import end_reason
from kernpool_sandbox.slot import Slot
from kernpool_sandbox.slots import SlotNames
from kernpool_sandbox.spawning import Spawning
from kernpool_sandbox.template import PlannedTemplate
from kernpool_sandbox.uids import UidRanges

_RECORD_PAUSES_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
_CGROUP_PAUSES_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05)

log = logging.getLogger(__name__)


@final
class SlotMaker:
    """Owns every slot of the node, by name."""

    def __init__(
        self, config: RuntimeConfig, spawning: Spawning, journal: Journal, cgroups: CgroupPool, uids: UidRanges | None
    ) -> None:
        self._config = config
        self._spawning = spawning
        self._journal = journal
        self._cgroups = cgroups
        self._uids = uids
        """None: every sandbox has the single id of this node's user."""
        self._names = SlotNames()
        self._abandoning: set[asyncio.Task[None]] = set()
        """Slots whose making was given up and that are being cleared away."""
        self.slots: dict[str, Slot] = {}
        """All that are made, being made, or not yet given back."""

    async def make(self, planned: PlannedTemplate, template: Template, on_dead: Callable[[Slot], None]) -> Slot:
        """Make a parked slot; returns when its PID 1 is ready. NoCapacityError, JournalFullError, StartError."""
        slot = self._lend(planned, template)
        uid_start = self._uids.start(slot.uid_index) if self._uids is not None else -1
        cloning = asyncio.ensure_future(self._spawning.spawn(slot.name, planned, uid_start, slot.lease.paths))
        try:
            path = await asyncio.shield(cloning)
            await slot.attach(path, on_dead, self._config.create_timeout_s)
        except (KpInitError, OSError) as error:
            await self._clear_away(slot, cloning)
            raise StartError(f"a sandbox could not be made: {error}") from error
        except asyncio.CancelledError:
            await self._clear_away(slot, cloning)
            raise
        return slot

    def adopt(self, slot: Slot) -> None:
        """Take in a slot that an earlier agent made."""
        self.slots[slot.name] = slot
        if self._uids is not None and slot.uid_index >= 0:
            self._uids.adopt(slot.uid_index)

    async def kill(self, slot: Slot) -> None:
        """End every process of a slot; its `on_dead` tells when that has happened."""
        if not slot.kill():
            await self._spawning.kill(slot.name)

    async def why(self, slot: Slot) -> tuple[EndReason, str]:
        """Say why a dead slot that nobody here ended is over."""
        end = self._end_record(slot.name)
        for pause_s in _RECORD_PAUSES_S:
            if end is not None or not self._spawning.will_reap(slot.name):
                break
            await self._spawning.reaped(slot.name, pause_s)  # then its record is complete; a hint may get lost
            end = self._end_record(slot.name)
        return end_reason(end, slot.oom_kills() - slot.lease.oom_kills_before)

    async def release(self, slot: Slot, reason: EndReason | None, detail: str) -> None:
        """Give back everything of a dead slot and write its end down."""
        slot.close()
        await self._give_back(slot.lease.name)
        self._forget(slot.name, slot.uid_index, reason, detail)

    def _forget(self, name: str, uid_index: int, reason: EndReason | None, detail: str) -> None:
        self._spawning.forget(name)
        remove_traces(self._config.state_dir, name)
        if self._uids is not None:
            self._uids.give_back(uid_index)
        self._journal.gone(name, reason, detail, time.time())
        self.slots.pop(name, None)

    def _lend(self, planned: PlannedTemplate, template: Template) -> Slot:
        """Take a cgroup and a uid range, and write down that a slot is made of them."""
        if len(self.slots) >= self._config.sandboxes_max:
            raise NoCapacityError(f"this node holds its {self._config.sandboxes_max} sandboxes; remove some first")
        uid_index = self._uids.take() if self._uids is not None else -1
        lease = None
        try:
            lease = self._cgroups.take(planned.limits)
            name = self._names.new(uid_index, lease.name)
            self._journal.template(planned.key, template)
            self._journal.slot(SlotRecord(name, planned.key, lease.name, uid_index, lease.oom_kills_before))
        except BaseException as error:
            self._take_back(uid_index, lease)
            if isinstance(error, OSError):
                raise StartError(f"no cgroup could be made for a sandbox: {error}") from error
            raise
        slot = self.slots[name] = Slot(name, planned.key, lease, uid_index, self._cgroups)
        return slot

    def _take_back(self, uid_index: int, lease: CgroupLease | None) -> None:
        if self._uids is not None:
            self._uids.give_back(uid_index)
        if lease is not None:
            self._cgroups.give_back(lease.name)

    async def _clear_away(self, slot: Slot, cloning: "asyncio.Future[str]") -> None:
        """Abandon a slot whatever happens to the caller meanwhile."""
        task = asyncio.ensure_future(self._abandon(slot, cloning))
        self._abandoning.add(task)
        task.add_done_callback(self._abandoning.discard)
        await asyncio.shield(task)

    async def _abandon(self, slot: Slot, cloning: "asyncio.Future[str]") -> None:
        """Give back the parts of a slot whose making failed or was given up, when what was cloned of it is gone."""
        slot.end = (EndReason.START_FAILED, "")  # so that its death is nobody else's business
        await asyncio.wait([cloning])
        if cloning.exception() is None and not slot.dead:
            await self._spawning.kill(slot.name)
            await self._spawning.reaped(slot.name, self._config.remove_timeout_s)
        await self.release(slot, None, "")

    async def _give_back(self, name: str) -> None:
        """Give a cgroup back; the kernel may need a moment until it counts as empty."""
        for pause_s in _CGROUP_PAUSES_S:
            if self._cgroups.give_back(name):
                return
            await asyncio.sleep(pause_s)
        deadline_s = time.monotonic() + self._config.remove_timeout_s
        while not (self._cgroups.kill(name) and self._cgroups.give_back(name)):
            if time.monotonic() > deadline_s:
                log.error("cgroup %s still has processes after %.0f s; left", name, self._config.remove_timeout_s)
                return
            await asyncio.sleep(0.05)

    def _end_record(self, name: str) -> EndRecord | None:
        try:
            return parse_end_record(end_record_path(self._config.state_dir, name).read_text(errors="replace"))
        except (OSError, ValueError):
            return None  # never written, or removed with its sandbox


def remove_traces(state_dir: Path, name: str) -> None:
    """Remove the socket and the end record of a slot that is over."""
    for suffix in (".sock", ".end"):
        try:
            os.unlink(f"{state_dir}/s/{name}{suffix}")  # noqa: PTH108 - on the path of every removal, a Path costs more
        except FileNotFoundError:
            continue
