"""What this node made, written down before it is made, so that an agent that comes back knows each sandbox's parts.

A file of msgpack arrays, appended without fsync: a power loss ends the sandboxes anyway (DECISIONS 20). Each record is
one `write`; a torn or foreign tail is cut off when it is read. A full disk refuses new records and leaves the file as
it was; ends that could not be written are found again by the reconciliation (their sandbox is gone).
"""

import errno
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, final

import msgpack

from kernpool_mesh.messages import Limits, Template
from kernpool_mesh.reasons import EndReason
from kernpool_sandbox.errors import JournalFullError, TemplateError

VERSION = 1
COMPACT_BYTES_MIN = 1 << 20
"""Below this the file is never rewritten."""
ENDED_KEPT_MAX = 1024
"""How many ends a rewritten journal keeps, so that they can still be told after a restart."""
RECORD_BYTES_MAX = 64 * 1024


class Op(IntEnum):
    """First item of each record."""

    HEADER = 0
    """[version, boot_id]"""
    TEMPLATE = 1
    """[key, template]"""
    SLOT = 2
    """[slot, key, cgroup, uid_index, oom_kills_before]: about to be cloned"""
    CLAIM = 3
    """[slot, claim]: about to be handed out"""
    EXTEND = 4
    """[slot, ttl_s, expires_unix_s]"""
    GONE = 5
    """[slot, reason or "", detail, ended_unix_s]: nothing of it is left"""


@final
@dataclass(frozen=True, slots=True)
class Claim:
    """To whom a slot was handed out."""

    sandbox_id: str
    ttl_s: float
    idle_s: float
    started_unix_s: float
    expires_unix_s: float
    parked: bool
    labels: dict[str, str] = field(default_factory=dict)
    workspace: str = "default"
    owner: str = ""


@final
@dataclass(frozen=True, slots=True)
class SlotRecord:
    """One kp-init sandbox with the parts it was given."""

    slot: str
    key: str
    """Key of its template."""
    cgroup: str
    """Name in the node's cgroup tree; empty: none."""
    uid_index: int
    """Index of its uid range; -1: none."""
    oom_kills_before: int
    """The cgroup's OOM counter when it was taken."""
    claim: Claim | None = None


@final
@dataclass(frozen=True, slots=True)
class EndedRecord:
    """How a handed-out slot ended."""

    slot: str
    template: Template
    claim: Claim
    reason: EndReason
    detail: str
    ended_unix_s: float


@final
@dataclass(slots=True)
class JournalState:
    """What a journal says: read back at the start, kept up to date while it is written."""

    boot_id: str = ""
    templates: dict[str, Template] = field(default_factory=dict)
    slots: dict[str, SlotRecord] = field(default_factory=dict)
    ended: OrderedDict[str, EndedRecord] = field(default_factory=OrderedDict)
    """By sandbox id, oldest first."""

    def apply(self, record: list[Any]) -> None:
        """Take in one record; raises ValueError, TypeError, KeyError or IndexError on one that no journal has."""
        if isinstance(record[0], int) and record[0] > max(Op):
            return  # written by a later version
        match Op(record[0]):
            case Op.HEADER:
                self.boot_id = str(record[2])
            case Op.TEMPLATE:
                self.templates[record[1]] = _template(record[2])
            case Op.SLOT:
                self.slots[record[1]] = SlotRecord(record[1], record[2], record[3], record[4], record[5])
            case Op.CLAIM:
                self.slots[record[1]] = replace(self.slots[record[1]], claim=Claim(*record[2]))
            case Op.EXTEND:
                self._extend(record[1], record[2], record[3])
            case Op.GONE:
                self._gone(record[1], record[2], record[3], record[4])

    def records(self) -> Iterator[list[Any]]:
        """Return the records that lead to this state: what a rewritten journal holds."""
        yield [Op.HEADER, VERSION, self.boot_id]
        used = {slot.key for slot in self.slots.values()}
        for key in used & self.templates.keys():
            yield [Op.TEMPLATE, key, astuple(self.templates[key])]
        for ended in self.ended.values():
            key = f"ended:{ended.slot}"
            yield [Op.TEMPLATE, key, astuple(ended.template)]
            yield [Op.SLOT, ended.slot, key, "", -1, 0]
            yield [Op.CLAIM, ended.slot, astuple(ended.claim)]
            yield [Op.GONE, ended.slot, ended.reason, ended.detail, ended.ended_unix_s]
        for slot in self.slots.values():
            yield [Op.SLOT, slot.slot, slot.key, slot.cgroup, slot.uid_index, slot.oom_kills_before]
            if slot.claim is not None:
                yield [Op.CLAIM, slot.slot, astuple(slot.claim)]

    def _extend(self, slot: str, ttl_s: float, expires_unix_s: float) -> None:
        record = self.slots[slot]
        if record.claim is not None:
            claim = replace(record.claim, ttl_s=ttl_s, expires_unix_s=expires_unix_s)
            self.slots[slot] = replace(record, claim=claim)

    def _gone(self, slot: str, reason: str, detail: str, ended_unix_s: float) -> None:
        record = self.slots.pop(slot, None)
        if record is None or record.claim is None or not reason:
            return
        template = self.templates.get(record.key, Template())
        ended = EndedRecord(slot, template, record.claim, EndReason(reason), detail, ended_unix_s)
        self.ended[record.claim.sandbox_id] = ended
        while len(self.ended) > ENDED_KEPT_MAX:
            self.ended.popitem(last=False)


@final
class Journal:
    """The journal file, open for appending; `state` is what it says."""

    __slots__ = ("_bytes", "_compact_at_bytes", "_fd", "_pack", "_path", "_unwritten", "state")

    def __init__(self, path: Path, boot_id: str) -> None:
        """Read the file (a missing one is empty) and go on writing after its last whole record.

        A journal of an earlier boot is still read: its sandboxes are known to be lost. OSError when it cannot be read.
        """
        self._path = path
        self._pack = msgpack.Packer(autoreset=True).pack
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.state, self._bytes = replay(_read_all(self._fd))
        os.ftruncate(self._fd, self._bytes)
        self._compact_at_bytes = max(COMPACT_BYTES_MIN, 2 * self._bytes)
        self._unwritten: list[bytes] = []
        """Ends that met a full disk; written before anything else once there is room."""
        if not self._bytes:
            self.state.boot_id = boot_id
            self._append_if_possible([Op.HEADER, VERSION, boot_id])

    # --- what is written ahead: raises JournalFullError and then nothing was written ---

    def template(self, key: str, template: Template) -> None:
        """Write down what a template is, once, before the first slot of it."""
        if key not in self.state.templates:
            self._append([Op.TEMPLATE, key, astuple(template)])
            self.state.templates[key] = template

    def slot(self, record: SlotRecord) -> None:
        """A sandbox is about to be cloned."""
        self._append([Op.SLOT, record.slot, record.key, record.cgroup, record.uid_index, record.oom_kills_before])
        self.state.slots[record.slot] = record

    def claim(self, slot: str, claim: Claim) -> None:
        """A slot is about to be handed out."""
        packed = (
            claim.sandbox_id,
            claim.ttl_s,
            claim.idle_s,
            claim.started_unix_s,
            claim.expires_unix_s,
            claim.parked,
            claim.labels,
            claim.workspace,
            claim.owner,
        )
        self._append([Op.CLAIM, slot, packed])
        record = self.state.slots[slot]
        self.state.slots[slot] = SlotRecord(
            record.slot, record.key, record.cgroup, record.uid_index, record.oom_kills_before, claim
        )

    def extend(self, slot: str, ttl_s: float, expires_unix_s: float) -> None:
        """A sandbox's time to live is about to be set anew."""
        self._append(record := [Op.EXTEND, slot, ttl_s, expires_unix_s])
        self.state.apply(record)

    # --- what is written after the fact: never fails ---

    def gone(self, slot: str, reason: EndReason | None, detail: str, ended_unix_s: float) -> None:
        """Nothing of a slot is left; the reason is None for one that was never handed out."""
        record = [Op.GONE, slot, reason or "", detail, ended_unix_s]
        self.state.apply(record)
        self._append_if_possible(record)
        if self._bytes > self._compact_at_bytes:
            self.compact()

    def compact(self) -> None:
        """Rewrite the file with what still counts; on a full disk the old one stays."""
        temporary = self._path.with_suffix(".new")
        try:
            text = b"".join(self._pack(record) for record in self.state.records())
            fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:
            self._compact_at_bytes *= 2
            return
        try:
            _write_whole(fd, text)
            temporary.replace(self._path)
        except OSError:
            os.close(fd)
            temporary.unlink(missing_ok=True)
            self._compact_at_bytes *= 2
            return
        os.close(self._fd)
        self._fd, self._bytes = fd, len(text)
        self._compact_at_bytes = max(COMPACT_BYTES_MIN, 2 * self._bytes)
        self._unwritten.clear()  # their slots are not in the state any more

    def begin_boot(self, boot_id: str) -> None:
        """Say that from here on all was made in this boot; called when what an earlier boot left is settled."""
        self.state.boot_id = boot_id
        self.compact()

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _append(self, record: list[Any]) -> None:
        data = self._pack(record)
        if len(data) > RECORD_BYTES_MAX:
            raise TemplateError(f"a journal record of {len(data)} bytes is over the bound of {RECORD_BYTES_MAX}")
        try:
            if self._unwritten:
                self._write(b"".join(self._unwritten))
                self._unwritten.clear()
            self._write(data)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise JournalFullError(
                f"the disk under {self._path} is full, so no sandbox can be started or changed; free some space there"
            ) from error

    def _append_if_possible(self, record: list[Any]) -> None:
        data = self._pack(record)
        try:
            self._write(data)
        except OSError:
            self._unwritten.append(data)

    def _write(self, data: bytes) -> None:
        try:
            _write_whole(self._fd, data)
        except OSError:
            os.ftruncate(self._fd, self._bytes)
            raise
        self._bytes += len(data)


def replay(data: bytes) -> tuple[JournalState, int]:
    """Return what a journal's bytes say and how many of them do: the rest is torn, foreign or of an unknown kind."""
    state = JournalState()
    unpacker = msgpack.Unpacker(max_buffer_size=max(1, len(data)), strict_map_key=True)
    unpacker.feed(data)
    good = 0
    while good < len(data):
        try:
            record = unpacker.unpack()
            state.apply(record)
        except (msgpack.exceptions.UnpackException, ValueError, TypeError, KeyError, IndexError):
            break
        good = unpacker.tell()
    return state, good


def _template(items: Iterable[Any]) -> Template:
    fields = list(items)
    fields[1] = Limits(*fields[1])
    return Template(*fields)


def _read_all(fd: int) -> bytes:
    parts = []
    while part := os.read(fd, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def _write_whole(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
