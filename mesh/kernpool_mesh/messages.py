"""Every message of the agent's link, as slotted dataclasses that travel as msgpack arrays.

The rule of growth (DECISIONS 7): new fields are added at the end and have defaults; a decoder ignores extra items.
A message's `TYPE` number is never reused. Times are seconds unless the name says otherwise; `*_unix_s` are shown to
people and never compared.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, final

from kernpool_mesh.reasons import EndReason
from kernpool_mesh.records import (
    AttemptState,
    AttemptStatus,
    Command,
    CommandResult,
    Gpu,
    Limits,
    PoolTarget,
    Resources,
    SandboxItem,
    SandboxState,
    SandboxStatus,
    Template,
)

__all__ = [
    "FRAME_BYTES_MAX",
    "PROTO_MAX",
    "PROTO_MIN",
    "AckAttempts",
    "AttemptState",
    "AttemptStatus",
    "AttemptUpdate",
    "CertificateIssued",
    "CertificateRequest",
    "Command",
    "CommandResult",
    "CreateSandboxes",
    "DataKey",
    "ExtendSandbox",
    "ForgetJobs",
    "Fragment",
    "Gpu",
    "Heartbeat",
    "HeartbeatAck",
    "Hello",
    "Inventory",
    "Limits",
    "Message",
    "PoolTarget",
    "RemoveSandboxes",
    "Reply",
    "Resources",
    "SandboxItem",
    "SandboxItems",
    "SandboxState",
    "SandboxStatus",
    "SandboxUpdate",
    "SetPools",
    "Snapshot",
    "StartAttempt",
    "StopAttempt",
    "StreamCredit",
    "StreamData",
    "StreamEof",
    "StreamOpen",
    "StreamReset",
    "Template",
    "Welcome",
]

PROTO_MIN = 1
PROTO_MAX = 1
FRAME_BYTES_MAX = 16 * 1024
"""The control link's largest frame (DECISIONS 19); what is larger is split or travels in a stream."""


@dataclass(slots=True)
class Message:
    """Base of all messages; a subclass has its own TYPE number."""

    TYPE: ClassVar[int]


# --- agent -> coordinator ---


@final
@dataclass(slots=True)
class Hello(Message):
    """First frame of a link, from the agent."""

    TYPE: ClassVar[int] = 1
    proto_min: int
    proto_max: int
    node_id: str
    incarnation: int
    """Grows with every start of the agent on this node (persisted by the agent)."""
    boot_id: str
    agent_version: str
    features: list[str] = field(default_factory=list)


@final
@dataclass(slots=True)
class Inventory(Message):
    """What the node is and has; sent after Welcome and when it changes."""

    TYPE: ClassVar[int] = 2
    hostname: str
    total: Resources
    gpus: list[Gpu] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    """Addresses other nodes may reach it at (KP_NODE_IPS), best first."""
    data_plane_urls: list[str] = field(default_factory=list)
    """`https://ADDRESS:PORT` of the agent's own listener; empty when it has none."""
    facts: dict[str, Any] = field(default_factory=dict)
    """os, kernel, arch, cpu_model, cgroup (v1, v2, none), limits, uids, idmap, proc, disks, python, ..."""
    isolation: list[str] = field(default_factory=list)
    """Sandbox isolations that work here, e.g. ["namespace"]; empty: no sandboxes."""
    isolation_problems: list[str] = field(default_factory=list)
    """One sentence for each thing that does not work and what to do about it."""
    labels: dict[str, str] = field(default_factory=dict)


@final
@dataclass(slots=True)
class Heartbeat(Message):
    """A sign of life with what is free; answered by HeartbeatAck."""

    TYPE: ClassVar[int] = 3
    seq: int
    free: Resources
    load_1m: float = 0.0
    memory_available_mib: int = 0
    sandboxes_running: int = 0
    sandboxes_parked: int = 0


@final
@dataclass(slots=True)
class Snapshot(Message):
    """All that the node holds; sent after Welcome (several frames, the last says so) for the coordinator to adopt."""

    TYPE: ClassVar[int] = 4
    attempts: list[AttemptStatus]
    sandboxes: list[SandboxStatus]
    last: bool = True


@final
@dataclass(slots=True)
class AttemptUpdate(Message):
    """An attempt changed its state; repeated until acknowledged when it is ENDED."""

    TYPE: ClassVar[int] = 5
    status: AttemptStatus


@final
@dataclass(slots=True)
class SandboxUpdate(Message):
    """Sandboxes changed their state by themselves (ttl, oom, ...)."""

    TYPE: ClassVar[int] = 6
    sandboxes: list[SandboxStatus]


@final
@dataclass(slots=True)
class SandboxItems(Message):
    """Some items of a bulk create, as they come; `done` with the last."""

    TYPE: ClassVar[int] = 7
    request_id: int
    items: list[SandboxItem]
    done: bool = False


@final
@dataclass(slots=True)
class Reply(Message):
    """The answer to a coordinator's request that has no answer type of its own."""

    TYPE: ClassVar[int] = 8
    request_id: int
    error: str = ""
    """Empty: it was done. Otherwise one sentence."""
    code: str = ""
    """Machine-readable name of the error: refused, stale_fence, not_found, no_capacity, busy, invalid, internal."""


@final
@dataclass(slots=True)
class CertificateRequest(Message):
    """A node asks for its next certificate over its live link."""

    TYPE: ClassVar[int] = 9
    request_id: int
    csr_pem: bytes


# --- coordinator -> agent ---


@final
@dataclass(slots=True)
class Welcome(Message):
    """The coordinator's answer to Hello."""

    TYPE: ClassVar[int] = 32
    proto: int
    coordinator_id: str
    cluster_id: str
    server_unix_s: float
    heartbeat_interval_s: float
    data_key: bytes = b""
    """Per-node HMAC key of the data-plane tokens, rotated daily (DECISIONS 18)."""
    data_key_id: int = 0
    features: list[str] = field(default_factory=list)


@final
@dataclass(slots=True)
class HeartbeatAck(Message):
    """The answer to a Heartbeat; carries the coordinator's time for token expiry."""

    TYPE: ClassVar[int] = 33
    seq: int
    server_unix_s: float


@final
@dataclass(slots=True)
class StartAttempt(Message):
    """Run one rank of a job; the agent journals it (fsync), answers Reply, then starts it at most once per fence."""

    TYPE: ClassVar[int] = 34
    request_id: int
    job_id: str
    index: int
    fence: int
    name: str
    setup: str
    """bash text; empty: none."""
    run: str
    """bash text; empty: none."""
    env: dict[str, str]
    limits: Limits
    gpu_indices: list[int] = field(default_factory=list)
    grace_s: float = 10.0
    """Between SIGTERM and SIGKILL."""
    timeout_s: float = 0.0
    log_bytes_max: int = 1 << 30
    secret_env: dict[str, str] = field(default_factory=dict)
    """Handed to the process only: never journaled in clear, never shown."""
    workspace: str = "default"
    owner: str = ""


@final
@dataclass(slots=True)
class StopAttempt(Message):
    """End an attempt with this reason: SIGTERM to all, SIGKILL after the grace period; unknown ones: not_found."""

    TYPE: ClassVar[int] = 35
    request_id: int
    job_id: str
    index: int
    fence: int
    reason: EndReason
    grace_s: float = 10.0


@final
@dataclass(slots=True)
class AckAttempts(Message):
    """The coordinator has these ends on disk: stop repeating them. Logs stay until ForgetJobs or the node's bound."""

    TYPE: ClassVar[int] = 36
    attempts: list[tuple[str, int, int]]
    """(job_id, index, fence)"""


@final
@dataclass(slots=True)
class ForgetJobs(Message):
    """Remove the logs and records of these ended jobs."""

    TYPE: ClassVar[int] = 37
    job_ids: list[str]


@final
@dataclass(slots=True)
class CreateSandboxes(Message):
    """Make sandboxes (and run one command in each): one message per node, a result per item by SandboxItems."""

    TYPE: ClassVar[int] = 38
    request_id: int
    sandbox_ids: list[str]
    template: Template
    ttl_s: float
    idle_s: float = 0.0
    """0: no idle end."""
    command: Command | None = None
    remove_after: bool = False
    """Remove each sandbox when its command has ended."""
    env: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    workspace: str = "default"
    owner: str = ""


@final
@dataclass(slots=True)
class RemoveSandboxes(Message):
    """End and remove sandboxes; unknown ids count as done. Answered by Reply when nothing of them is left."""

    TYPE: ClassVar[int] = 39
    request_id: int
    sandbox_ids: list[str]
    reason: EndReason = EndReason.CANCELLED


@final
@dataclass(slots=True)
class ExtendSandbox(Message):
    """Set a sandbox's time to live anew, counted from now."""

    TYPE: ClassVar[int] = 40
    request_id: int
    sandbox_id: str
    ttl_s: float


@final
@dataclass(slots=True)
class SetPools(Message):
    """The whole set of parked pools this node should keep; those not named are drained."""

    TYPE: ClassVar[int] = 41
    request_id: int
    pools: list[PoolTarget]


@final
@dataclass(slots=True)
class CertificateIssued(Message):
    """The answer to CertificateRequest; `error` not empty when refused."""

    TYPE: ClassVar[int] = 42
    request_id: int
    certificate_pem: bytes = b""
    ca_pem: bytes = b""
    error: str = ""


@final
@dataclass(slots=True)
class DataKey(Message):
    """A new data-plane HMAC key; the previous one stays valid for 10 minutes."""

    TYPE: ClassVar[int] = 43
    key_id: int
    key: bytes


# --- both ways: byte streams inside the link, with credit (DECISIONS 19) ---


@final
@dataclass(slots=True)
class StreamOpen(Message):
    """Open a byte stream to the agent's data-plane server; the opener chooses the id (coordinator even, agent odd)."""

    TYPE: ClassVar[int] = 64
    stream_id: int
    actor: str
    """Who acts, as the coordinator authenticated it."""
    object: str
    """What the stream may touch, e.g. `sandbox/sb-123` or `job/j-7`; the server checks each request against it."""
    verbs: list[str]
    credit: int
    """Bytes the other side may send before it gets more."""


@final
@dataclass(slots=True)
class StreamData(Message):
    """Bytes of a stream; never more than the granted credit."""

    TYPE: ClassVar[int] = 65
    stream_id: int
    data: bytes


@final
@dataclass(slots=True)
class StreamCredit(Message):
    """Grant more bytes to the sender of a stream."""

    TYPE: ClassVar[int] = 66
    stream_id: int
    credit: int


@final
@dataclass(slots=True)
class StreamEof(Message):
    """No more bytes from this side; the other direction stays open."""

    TYPE: ClassVar[int] = 67
    stream_id: int


@final
@dataclass(slots=True)
class StreamReset(Message):
    """The stream is over, both ways, at once."""

    TYPE: ClassVar[int] = 68
    stream_id: int
    error: str = ""


@final
@dataclass(slots=True)
class Fragment(Message):
    """A piece of one encoded message that is larger than a frame; the link joins them, no room ever sees one."""

    TYPE: ClassVar[int] = 69
    data: bytes
    last: bool
