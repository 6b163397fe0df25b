"""The journal's records: what is remembered of attempts across a crash, and how it is written as msgpack.

A record is an array `[kind, fields...]`. The rule of growth is the link's: new fields at the end with defaults,
extra items ignored, a kind's number never reused, an unknown kind skipped (a newer agent wrote it).
"""

from dataclasses import dataclass, field
from typing import Any, assert_never, final

import msgpack

from kernpool_agent.errors import JournalError
from kernpool_mesh.messages import Limits
from kernpool_mesh.reasons import EndReason


@final
@dataclass(frozen=True, slots=True, order=True)
class AttemptKey:
    """One attempt of one rank of a job."""

    job_id: str
    index: int
    fence: int

    @property
    def parts(self) -> tuple[str, int, int]:
        """The key as it travels."""
        return (self.job_id, self.index, self.fence)

    def __str__(self) -> str:
        return f"{self.job_id}[{self.index}] attempt {self.fence}"


@final
@dataclass(frozen=True, slots=True)
class Accepted:
    """An attempt that may have been started: fsynced before it is."""

    key: AttemptKey
    limits: Limits = field(default_factory=Limits)
    """What the capacity ledger counts for it."""
    gpu_indices: tuple[int, ...] = ()
    accepted_unix_s: float = 0.0


@final
@dataclass(frozen=True, slots=True)
class Ended:
    """How an attempt ended, as it is told to the coordinator."""

    key: AttemptKey
    reason: EndReason
    exit_code: int = 0
    detail: str = ""
    log_bytes: int = 0
    started_unix_s: float = 0.0
    ended_unix_s: float = 0.0


@final
@dataclass(frozen=True, slots=True)
class Acked:
    """The coordinator has the end on disk."""

    key: AttemptKey


@final
@dataclass(frozen=True, slots=True)
class Forgotten:
    """The ended attempts of a job are forgotten."""

    job_id: str


@final
@dataclass(frozen=True, slots=True)
class FenceSeen:
    """Only the fence of a rank is still remembered."""

    job_id: str
    index: int
    fence: int


Record = Accepted | Ended | Acked | Forgotten | FenceSeen

_ACCEPTED, _ENDED, _ACKED, _FORGOTTEN, _FENCE_SEEN = 1, 2, 3, 4, 5


def encode(record: Record) -> bytes:
    """Return the record's bytes."""
    data: bytes = msgpack.packb(_to_list(record), use_bin_type=True)
    return data


def decode(data: bytes) -> Record | None:
    """Return the record, or None when its kind is one that this version does not know.

    Raises JournalError when the bytes are no record.
    """
    try:
        items = msgpack.unpackb(data, raw=False)
        return _from_list(items)
    except (ValueError, TypeError, IndexError, msgpack.UnpackException) as error:
        raise JournalError(f"a record of the journal cannot be read: {error}") from error


def _to_list(record: Record) -> list[Any]:
    match record:
        case Accepted(key, limits, gpus, at):
            amounts = [limits.cpu_millis, limits.memory_mib, limits.disk_mib, limits.pids]
            return [_ACCEPTED, *key.parts, amounts, list(gpus), at]
        case Ended(key, reason, code, detail, log_bytes, started, ended):
            return [_ENDED, *key.parts, reason.value, code, detail, log_bytes, started, ended]
        case Acked(key):
            return [_ACKED, *key.parts]
        case Forgotten(job_id):
            return [_FORGOTTEN, job_id]
        case FenceSeen(job_id, index, fence):
            return [_FENCE_SEEN, job_id, index, fence]
        case _:
            assert_never(record)


def _from_list(items: list[Any]) -> Record | None:
    match items[0]:
        case 1:
            return Accepted(_key(items), Limits(*items[4][:4]), tuple(items[5]), items[6])
        case 2:
            return Ended(_key(items), EndReason(items[4]), *items[5:10])
        case 3:
            return Acked(_key(items))
        case 4:
            return Forgotten(str(items[1]))
        case 5:
            return FenceSeen(*_key(items).parts)
        case _:
            return None


def _key(items: list[Any]) -> AttemptKey:
    job_id, index, fence = items[1:4]
    if not (isinstance(job_id, str) and isinstance(index, int) and isinstance(fence, int)):
        raise TypeError(f"not an attempt: {items[1:4]!r}")
    return AttemptKey(job_id, index, fence)
