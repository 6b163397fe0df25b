"""Records that messages carry: what people and programs call a GPU, a command, a template, a status.

They travel as arrays inside a message and have no TYPE of their own; the rule of growth is that of messages.py.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import final

from kernpool_mesh.reasons import EndReason


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
class PoolTarget:
    """How many sandboxes of a template should stand parked."""

    template: Template
    parked: int
    drain_after_s: float = 600.0
    """Unused for so long, the pool is drained; 0: never."""
