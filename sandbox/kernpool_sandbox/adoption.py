"""Looks at what an earlier agent left on the node and carries out what `reconcile` decides about it."""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import final

from kernpool_mesh.messages import Template
from kernpool_mesh.reasons import EndReason
from kernpool_sandbox import slots
from kernpool_sandbox.cgroup_pool import CgroupLease, CgroupPool
from kernpool_sandbox.config import RuntimeConfig
from kernpool_sandbox.journal import Claim, EndedRecord, Journal, SlotRecord
from kernpool_sandbox.kpinit.errors import GoneError, KpInitError
from kernpool_sandbox.kpinit.record import EndRecord, parse_end_record
from kernpool_sandbox.lifecycle import Phase, Sandbox
from kernpool_sandbox.maker import SlotMaker
from kernpool_sandbox.reconcile import Adopt, AdoptUnknown, Decision, End, Found, RemoveCgroup, SlotFacts, reconcile
from kernpool_sandbox.slot import Slot

ATTACH_CONCURRENCY = 64
ATTACH_TIMEOUT_S = 10.0
REMOVE_TRIES = 200

log = logging.getLogger(__name__)


@final
@dataclass(frozen=True, slots=True)
class Adopted:
    """A living sandbox that is served again."""

    slot: Slot
    claim: Claim
    template: Template


@final
class Adoption:
    """One start-up's look around: `gather`, decide, `carry_out`."""

    def __init__(
        self,
        config: RuntimeConfig,
        journal: Journal,
        cgroups: CgroupPool,
        maker: SlotMaker,
        on_dead: Callable[[Slot], None],
    ) -> None:
        self._config = config
        self._journal = journal
        self._cgroups = cgroups
        self._maker = maker
        self._on_dead = on_dead
        self._attached: dict[str, Slot] = {}
        """Slots whose PID 1 answered."""
        self._gate = asyncio.Semaphore(ATTACH_CONCURRENCY)

    async def run(self, boot_id: str) -> list[Adopted]:
        """Adopt or sweep everything; returns what lives."""
        facts = await self._gather()
        decisions = reconcile(
            self._journal.state.slots,
            facts,
            self._cgroups.strangers(()),
            same_boot=self._journal.state.boot_id == boot_id,
        )
        adopted = await self._carry_out(decisions)
        if self._journal.state.boot_id != boot_id:
            self._journal.begin_boot(boot_id)
        return adopted

    # --- looking ---

    async def _gather(self) -> dict[str, SlotFacts]:
        names = self._names_on_disk() | self._journal.state.slots.keys()
        found = await asyncio.gather(*(self._look(name) for name in names))
        return dict(zip(names, found, strict=True))

    def _names_on_disk(self) -> set[str]:
        directory = self._config.state_dir / "s"
        names = (Path(entry.name) for entry in os.scandir(directory)) if directory.is_dir() else ()
        return {name.stem for name in names if name.suffix in (".sock", ".end")}

    async def _look(self, name: str) -> SlotFacts:
        record = self._journal.state.slots.get(name)
        end = self._end_record(name)
        oom_kills = self._cgroups.oom_kills(record.cgroup) if record is not None else 0
        socket = self._config.state_dir / "s" / f"{name}.sock"
        if not socket.exists():
            on_disk = (self._config.state_dir / "s" / f"{name}.end").exists()
            return SlotFacts(Found.DEAD if on_disk else Found.NOTHING, end, oom_kills)
        async with self._gate:
            return SlotFacts(await self._attach(name, record, str(socket)), end, oom_kills)

    async def _attach(self, name: str, record: SlotRecord | None, socket: str) -> Found:
        parts = slots.parse(name)
        lease = CgroupLease(parts.cgroup, (), record.oom_kills_before if record is not None else 0)
        slot = Slot(name, record.key if record is not None else "", lease, parts.uid_index, self._cgroups)
        try:
            await slot.attach(socket, self._on_dead, ATTACH_TIMEOUT_S)
        except GoneError:
            return Found.DEAD
        except (KpInitError, OSError) as error:
            log.warning("sandbox %s does not answer: %s", name, error)
            return Found.SILENT
        self._attached[name] = slot
        return Found.CLAIMED if slot.client.hello.claimed else Found.PARKED

    def _end_record(self, name: str) -> EndRecord | None:
        try:
            text = (self._config.state_dir / "s" / f"{name}.end").read_text(errors="replace")
            return parse_end_record(text)
        except (OSError, ValueError):
            return None

    # --- doing ---

    async def _carry_out(self, decisions: Iterable[Decision]) -> list[Adopted]:
        adopted: list[Adopted] = []
        ends: list[End] = []
        for decision in decisions:
            match decision:
                case Adopt(record):
                    assert record.claim is not None
                    template = self._journal.state.templates.get(record.key, Template())
                    adopted.append(self._adopt(record.slot, record.claim, template))
                case AdoptUnknown(name):
                    adopted.append(self._adopt(name, self._recovered(name), Template()))
                case End():
                    ends.append(decision)
                case RemoveCgroup(name):
                    await self._remove_cgroup(name)
        await asyncio.gather(*(self._end(end) for end in ends))
        await asyncio.gather(*(self._take_over(one.slot) for one in adopted))
        return adopted

    def _adopt(self, name: str, claim: Claim, template: Template) -> Adopted:
        slot = self._attached.pop(name)
        slot.claimed_by = claim.sandbox_id
        self._cgroups.adopt(slot.lease.name)
        self._maker.adopt(slot)
        return Adopted(slot, claim, template)

    def _recovered(self, name: str) -> Claim:
        """Name a living sandbox of which no record is left, so that it can be seen and removed; its deadline holds."""
        log.warning("sandbox slot %s lives but is in no journal; it is kept as sb-%s", name, name)
        left_s = max(0, self._attached[name].client.hello.ttl_left_ms) / 1000
        claim = Claim(f"sb-{name}", left_s, 0.0, 0.0, 0.0, parked=False, labels={"kernpool/recovered": "true"})
        self._journal.slot(SlotRecord(name, "", *_parts(name), 0))
        self._journal.claim(name, claim)
        return claim

    async def _take_over(self, slot: Slot) -> None:
        try:
            await slot.take_over_commands()
        except (KpInitError, OSError) as error:
            log.warning("the commands of sandbox %s could not be taken over: %s", slot.claimed_by, error)

    async def _end(self, end: End) -> None:
        """Kill what lives of a slot, then give its parts back."""
        slot = self._attached.pop(end.slot, None)
        if slot is None:
            parts = slots.parse(end.slot)
            slot = Slot(end.slot, "", CgroupLease(parts.cgroup, (), 0), parts.uid_index, self._cgroups)
        self._cgroups.adopt(slot.lease.name)
        self._maker.adopt(slot)
        if end.kill:
            slot.end = (EndReason.LOST, end.detail)
            await self._maker.kill(slot)
            await self._wait_until_gone(slot)
        await self._maker.release(slot, end.reason, end.detail)

    async def _wait_until_gone(self, slot: Slot) -> None:
        for _ in range(REMOVE_TRIES):
            if slot.dead or (not slot.connected and self._cgroups.kill(slot.lease.name)):
                return
            await asyncio.sleep(0.01)
        log.error("sandbox %s did not die within %.0f s", slot.name, REMOVE_TRIES / 100)

    async def _remove_cgroup(self, name: str) -> None:
        for _ in range(REMOVE_TRIES):
            if self._cgroups.remove_stranger(name):
                return
            await asyncio.sleep(0.01)
        log.error("cgroup %s of an earlier agent still has processes; left", name)


def _parts(name: str) -> tuple[str, int]:
    parts = slots.parse(name)
    return parts.cgroup, parts.uid_index


def living_sandbox(one: Adopted) -> Sandbox:
    """Return the table's record of an adopted sandbox."""
    sandbox = _sandbox(one.claim, one.template)
    sandbox.key, sandbox.phase, sandbox.slot = one.slot.key, Phase.RUNNING, one.slot.name
    return sandbox


def ended_sandbox(record: EndedRecord) -> Sandbox:
    """Return the table's record of a sandbox whose end the journal remembers."""
    sandbox = _sandbox(record.claim, record.template)
    sandbox.phase, sandbox.reason, sandbox.detail = Phase.ENDED, record.reason, record.detail
    return sandbox


def _sandbox(claim: Claim, template: Template) -> Sandbox:
    return Sandbox(
        claim.sandbox_id,
        "",
        template,
        dict(claim.labels),
        claim.workspace,
        claim.owner,
        claim.ttl_s,
        claim.idle_s,
        parked=claim.parked,
        started_unix_s=claim.started_unix_s,
        expires_unix_s=claim.expires_unix_s,
    )
