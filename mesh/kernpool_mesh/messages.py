"""Every message of the agent's link, as slotted dataclasses that travel as msgpack arrays.

The rule of growth (DECISIONS 7): new fields are added at the end and have defaults; a decoder ignores extra items.
A message's `TYPE` number is never reused. Times are seconds unless the name says otherwise; `*_unix_s` are shown to
people and never compared.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, final

from kernpool_mesh.reasons import EndReason

PROTO_MIN = 1
PROTO_MAX = 1
FRAME_BYTES_MAX = 16 * 1024
"""The control link's largest frame (DECISIONS 19); what is larger is split or travels in a stream."""


class AttemptState(StrEnum):
    """Where one attempt of one rank of a job stands on its node."""

    ACCEPTED = "accepted"
    """Journaled with fsync; nothing runs yet."""
    SETTING_UP = "setting_up"
    """Its `setup` commands run."""
    RUNNING = "running"
    """Its `run` commands run."""
    ENDED = "ended"
    """Over; the end reason and exit code are known."""


class SandboxState(StrEnum):
    """Where one sandbox stands on its node."""

    STARTING = "starting"
    """Asked for and being made or claimed."""
    RUNNING = "running"
    """Claimed: commands can run in it."""
    ENDED = "ended"
    """Over; the end reason is known."""


@dataclass(slots=True)
class Message:
    """Base of all messages; a subclass has its own TYPE number."""

    TYPE: ClassVar[int]


# --- shared records (nested arrays; no TYPE of their own) ---


@final
@dataclass(slots=True)
class Gpu:
    """One GPU as NVML names it."""

    index: int
    uuid: str
    name: str
    """Short model name as people write it in YAML, e.g. `H100`."""
    memory_mib: int
    healthy: bool = True


@final
@dataclass(slots=True)
class Resources:
    """An amount of a node's resources: its total, what is free, or what a task takes."""

    cpu_millis: int = 0
    memory_mib: int = 0
    disk_mib: int = 0
    gpus: int = 0


@final
@dataclass(slots=True)
class Limits:
    """What one sandbox or job may use at most; 0 means no limit of its own."""

    cpu_millis: int = 0
    memory_mib: int = 0
    disk_mib: int = 0
    pids: int = 0


@final
@dataclass(slots=True)
class Command:
    """One command to run in a sandbox or as a step of a job."""

    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    cwd: str = ""
    """Empty: the image's or the user's own directory."""
    user: str = ""
    """Empty: the template's or the job's own user."""
    timeout_s: float = 0.0
    """0: no deadline of its own."""
    stdin: bytes = b""
    output_bytes_max: int = 1 << 20
    """Bytes of each of stdout and stderr that are kept in a CommandResult."""


@final
@dataclass(slots=True)
class CommandResult:
    """What came of one command; output beyond the bound is cut and counted."""

    reason: EndReason
    exit_code: int
    """The leader's exit code, or 128 + signal."""
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_bytes_dropped: int = 0
    stderr_bytes_dropped: int = 0
    detail: str = ""
    first_output_ms: float = -1.0
    """From the agent's receipt of the request to the first output byte (or the exit); -1 when unknown."""


@final
@dataclass(slots=True)
class Template:
    """What a sandbox is made from; equal templates share one parked pool."""

    image: str = "host"
    """`host`, or the absolute path of a root filesystem directory or tar on the node."""
    limits: Limits = field(default_factory=Limits)
    user: str = "root"
    cwd: str = "/"
    env: dict[str, str] = field(default_factory=dict)
    network: str = "none"
    allow_setuid: bool = False


@final
@dataclass(slots=True)
class AttemptStatus:
    """One attempt as its node knows it."""

    job_id: str
    index: int
    """Rank of this attempt within its job, from 0."""
    fence: int
    state: AttemptState
    reason: EndReason | None = None
    exit_code: int = 0
    detail: str = ""
    log_bytes: int = 0
    """Length of its log so far (bytes ever written)."""
    started_unix_s: float = 0.0
    ended_unix_s: float = 0.0


@final
@dataclass(slots=True)
class SandboxStatus:
    """One sandbox as its node knows it."""

    sandbox_id: str
    state: SandboxState
    reason: EndReason | None = None
    detail: str = ""
    parked: bool = False
    """It was claimed from the pool, not made cold."""
    started_unix_s: float = 0.0
    expires_unix_s: float = 0.0
    template: Template = field(default_factory=Template)
    labels: dict[str, str] = field(default_factory=dict)
    workspace: str = "default"
    owner: str = ""


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
class SandboxItem:
    """The answer for one sandbox of a bulk create."""

    sandbox_id: str
    status: SandboxStatus | None = None
    """None while only the command's result is told."""
    result: CommandResult | None = None
    error: str = ""
    """Not empty: it could not be made, and why."""
    ready_ms: float = 0.0
    """From receipt of the request to ready."""


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
class PoolTarget:
    """How many sandboxes of a template should stand parked."""

    template: Template
    parked: int
    drain_after_s: float = 600.0
    """Unused for so long, the pool is drained; 0: never."""


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
