"""The coordinator, its nodes and clusters, and all at a glance."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from kernpool.protocol import fields as read

Object = Mapping[str, Any]


@final
@dataclass(frozen=True, slots=True)
class Amounts:
    """Amounts of a node's resources."""

    cpus: float = 0
    memory_mib: int = 0
    disk_mib: int = 0
    gpus: int = 0

    @classmethod
    def read(cls, data: Object) -> "Amounts":
        """Read the JSON form."""
        return cls(
            read.number(data, "cpus"),
            read.whole(data, "memory_mib"),
            read.whole(data, "disk_mib"),
            read.whole(data, "gpus"),
        )


@final
@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The coordinator."""

    version: str
    cluster_id: str
    started_unix_s: float
    ca_pin: str
    """sha256:HEX of the key of its authority."""
    node_url: str
    """Where agents enrol."""
    raw: Object = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def read(cls, data: Object) -> "ServerInfo":
        """Read the JSON form."""
        return cls(
            read.text(data, "version"),
            read.text(data, "cluster_id"),
            read.number(data, "started_unix_s"),
            read.text(data, "ca_pin"),
            read.text(data, "node_url"),
            data,
        )


@final
@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One node."""

    id: str
    name: str
    pool: str
    state: str
    """ready, suspect, unreachable or removed."""
    total: Amounts
    free: Amounts
    isolation: tuple[str, ...]
    """What sandboxes can be made of here; empty: none, see isolation_problems."""
    isolation_problems: tuple[str, ...]
    addresses: tuple[str, ...]
    facts: dict[str, Any]
    labels: dict[str, str]
    gpus: tuple[Object, ...]
    agent_version: str
    jobs_running: int
    sandboxes_running: int
    sandboxes_parked: int
    last_seen_s: float | None
    """Seconds since its last sign of life."""
    joined_unix_s: float
    raw: Object = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def read(cls, data: Object) -> "NodeInfo":
        """Read the JSON form."""
        return cls(
            id=read.name(data, "id"),
            name=read.text(data, "name"),
            pool=read.text(data, "pool"),
            state=read.text(data, "state"),
            total=read.record(data, "total", Amounts.read),
            free=read.record(data, "free", Amounts.read),
            isolation=read.texts(data, "isolation"),
            isolation_problems=read.texts(data, "isolation_problems"),
            addresses=read.texts(data, "addresses"),
            facts=read.any_map(data, "facts"),
            labels=read.text_map(data, "labels"),
            gpus=read.records(data, "gpus", dict),
            agent_version=read.text(data, "agent_version"),
            jobs_running=read.whole(data, "jobs_running"),
            sandboxes_running=read.whole(data, "sandboxes_running"),
            sandboxes_parked=read.whole(data, "sandboxes_parked"),
            last_seen_s=read.maybe_number(data, "last_seen_s"),
            joined_unix_s=read.number(data, "joined_unix_s"),
            raw=data,
        )


@final
@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """A named hold on capacity with its own queue."""

    name: str
    state: str
    """up, pending or down."""
    nodes: tuple[str, ...]
    num_nodes: int
    resources: Amounts
    jobs_running: int
    jobs_waiting: int
    workspace: str
    owner: str
    created_unix_s: float
    raw: Object = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def read(cls, data: Object) -> "ClusterInfo":
        """Read the JSON form."""
        return cls(
            name=read.name(data, "name"),
            state=read.text(data, "state"),
            nodes=read.texts(data, "nodes"),
            num_nodes=read.whole(data, "num_nodes"),
            resources=read.record(data, "resources", Amounts.read),
            jobs_running=read.whole(data, "jobs_running"),
            jobs_waiting=read.whole(data, "jobs_waiting"),
            workspace=read.text(data, "workspace"),
            owner=read.text(data, "owner"),
            created_unix_s=read.number(data, "created_unix_s"),
            raw=data,
        )


@final
@dataclass(frozen=True, slots=True)
class Status:
    """Everything at a glance."""

    server: ServerInfo
    nodes: tuple[NodeInfo, ...]
    clusters: tuple[ClusterInfo, ...]
    jobs: dict[str, int]
    """Number of jobs by state."""
    sandboxes: dict[str, int]
    """running, parked."""
    raw: Object = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def read(cls, data: Object) -> "Status":
        """Read the JSON form."""
        return cls(
            read.record(data, "server", ServerInfo.read),
            read.records(data, "nodes", NodeInfo.read),
            read.records(data, "clusters", ClusterInfo.read),
            read.count_map(data, "jobs"),
            read.count_map(data, "sandboxes"),
            data,
        )
