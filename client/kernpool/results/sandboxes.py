"""Sandboxes, what they are made from, and what came of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, final

from kernpool.errors import ApiError
from kernpool.protocol import fields as read
from kernpool.results.commands import CommandResult

S = TypeVar("S")
Object = Mapping[str, Any]


@final
@dataclass(frozen=True, slots=True)
class Limits:
    """What one sandbox may use at most; None: the node's default."""

    cpus: float | None = None
    memory_mib: int | None = None
    disk_mib: int | None = None
    pids: int | None = None

    @classmethod
    def read(cls, data: Object) -> "Limits":
        """Read the JSON form."""
        return cls(
            read.maybe_number(data, "cpus"),
            read.maybe_whole(data, "memory_mib"),
            read.maybe_whole(data, "disk_mib"),
            read.maybe_whole(data, "pids"),
        )

    def document(self) -> dict[str, Any]:
        """Give the JSON form without what is None."""
        values = {
            "cpus": self.cpus,
            "memory_mib": self.memory_mib,
            "disk_mib": self.disk_mib,
            "pids": self.pids,
        }
        return {name: value for name, value in values.items() if value is not None}


@final
@dataclass(frozen=True, slots=True)
class Template:
    """What a sandbox is made from; sandboxes of equal templates share a parked pool."""

    image: str = "host"
    limits: Limits = Limits()
    user: str = "root"
    cwd: str = "/"
    env: dict[str, str] = field(default_factory=dict)
    network: str = "none"
    allow_setuid: bool = False

    @classmethod
    def read(cls, data: Object) -> "Template":
        """Read the JSON form."""
        return cls(
            image=read.text(data, "image", "host"),
            limits=read.record(data, "limits", Limits.read),
            user=read.text(data, "user", "root"),
            cwd=read.text(data, "cwd", "/"),
            env=read.text_map(data, "env"),
            network=read.text(data, "network", "none"),
            allow_setuid=read.flag(data, "allow_setuid"),
        )

    def document(self) -> dict[str, Any]:
        """Give the JSON form."""
        return {
            "image": self.image,
            "limits": self.limits.document(),
            "user": self.user,
            "cwd": self.cwd,
            "env": self.env,
            "network": self.network,
            "allow_setuid": self.allow_setuid,
        }


@final
@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """One sandbox."""

    id: str
    node: str
    state: str
    """starting, running or ended."""
    reason: str | None
    detail: str
    template: Template
    parked: bool
    """It was claimed from the parked pool, not made cold."""
    labels: dict[str, str]
    created_unix_s: float
    expires_unix_s: float
    raw: Object = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def read(cls, data: Object) -> "SandboxInfo":
        """Read the JSON form."""
        return cls(
            read.name(data, "id"),
            read.text(data, "node"),
            read.text(data, "state"),
            read.maybe_text(data, "reason"),
            read.text(data, "detail"),
            read.record(data, "template", Template.read),
            read.flag(data, "parked"),
            read.text_map(data, "labels"),
            read.number(data, "created_unix_s"),
            read.number(data, "expires_unix_s"),
            data,
        )


@final
@dataclass(frozen=True, slots=True)
class Created(Generic[S]):
    """One item of a bulk create."""

    id: str
    sandbox: S
    """The handle; using it raises NotFoundError where the sandbox was removed or never made."""
    info: SandboxInfo | None
    result: CommandResult | None
    """What came of the command, where one was given and could be run."""
    error: ApiError | None
    """Why it could not be made; None when it was."""
    ready_ms: float | None
    """From the node's receipt of the request to ready."""

    @property
    def ok(self) -> bool:
        """It was made, and its command, if any, exited with 0."""
        return self.error is None and (self.result is None or self.result.ok)


@final
@dataclass(frozen=True, slots=True)
class Pool:
    """How many sandboxes of a template stand parked."""

    template: Template
    parked: int
    drain_after_s: float = 600.0
    """Unused for so long, the pool is drained; 0: never."""

    @classmethod
    def read(cls, data: Object) -> "Pool":
        """Read the JSON form."""
        return cls(
            read.record(data, "template", Template.read),
            read.whole(data, "parked"),
            read.number(data, "drain_after_s", 600.0),
        )

    def document(self) -> dict[str, Any]:
        """Give the JSON form."""
        return {"template": self.template.document(), "parked": self.parked, "drain_after_s": self.drain_after_s}


@final
@dataclass(frozen=True, slots=True)
class FileInfo:
    """One file in a sandbox."""

    name: str
    """The last part of its path."""
    type: str
    """file, dir, symlink or other."""
    size: int
    mode: int
    """Permission bits."""
    uid: int
    gid: int
    mtime_ns: int
    link: str
    """Where a symlink points."""
    raw: Object = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def read(cls, data: Object) -> "FileInfo":
        """Read the JSON form."""
        return cls(
            read.text(data, "name"),
            read.text(data, "type"),
            read.whole(data, "size"),
            read.whole(data, "mode"),
            read.whole(data, "uid"),
            read.whole(data, "gid"),
            read.whole(data, "mtime_ns"),
            read.text(data, "link"),
            data,
        )


@final
@dataclass(frozen=True, slots=True)
class Removed:
    """What a removal did."""

    ids: tuple[str, ...]
    """Nothing is left of these on their nodes."""
    unreachable: tuple[str, ...]
    """The nodes of these are away: they end there by their time to live at the latest."""

    @classmethod
    def read(cls, data: Object) -> "Removed":
        """Read the JSON form."""
        away = read.records(data, "unreachable", lambda item: read.name(item, "id"))
        return cls(read.texts(data, "removed"), away)
