"""How records look in tables: one row each, in words that need no manual."""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from kernpool.results import Amounts, ApiToken, ClusterInfo, Event, JobInfo, JoinToken, NodeInfo, Pool, SandboxInfo
from kernpool.units import show_duration, show_mib, show_number

Object = Mapping[str, Any]

NODE_COLUMNS = ("NAME", "ID", "STATE", "FREE CPUS", "FREE MEMORY", "FREE GPUS", "JOBS", "SANDBOXES", "SEEN")
JOB_COLUMNS = ("ID", "NAME", "CLUSTER", "STATE", "NODES", "AGE", "RAN", "DETAIL")
CLUSTER_COLUMNS = ("NAME", "STATE", "NODES", "HOLDS", "RUNNING", "WAITING", "AGE")
SANDBOX_COLUMNS = ("ID", "STATE", "NODE", "IMAGE", "AGE", "LEFT", "LABELS")
POOL_COLUMNS = ("IMAGE", "LIMITS", "PARKED", "DRAINED AFTER")
JOIN_TOKEN_COLUMNS = ("ID", "POOL", "USES LEFT", "EXPIRES IN")
TOKEN_COLUMNS = ("ID", "NAME", "ROLE", "WORKSPACE", "AGE")
EVENT_COLUMNS = ("ID", "TIME", "ACTOR", "VERB", "OBJECT", "CAUSE")


def age(since_unix_s: float) -> str:
    """Say how long ago; `-` where it is not known."""
    return show_duration(time.time() - since_unix_s) if since_unix_s else "-"


def age_of(seconds: float) -> str:
    """Say a duration."""
    return show_duration(seconds)


def of(free: float, total: float) -> str:
    """Say an amount that is free of a total."""
    return f"{show_number(free)} of {show_number(total)}" if total else "none"


def free_memory(node: NodeInfo) -> str:
    """Say the memory that is free."""
    total, free = show_mib(node.total.memory_mib), show_mib(node.free.memory_mib)
    number, _, unit = free.partition(" ")
    return f"{number} of {total}" if total.endswith(unit) else f"{free} of {total}"


def node_row(node: NodeInfo) -> Sequence[str]:
    """Show a node."""
    parked = f" (+{node.sandboxes_parked} parked)" if node.sandboxes_parked else ""
    return (
        node.name,
        node.id,
        node.state,
        of(node.free.cpus, node.total.cpus),
        free_memory(node),
        of(node.free.gpus, node.total.gpus),
        str(node.jobs_running),
        f"{node.sandboxes_running}{parked}" if node.isolation else "off",
        "-" if node.last_seen_s is None else f"{show_duration(node.last_seen_s)} ago",
    )


def ran(job: JobInfo) -> str:
    """Say how long a job has run, or ran."""
    if job.began_unix_s is None:
        return "-"
    return show_duration((job.ended_unix_s or time.time()) - job.began_unix_s)


def job_row(job: JobInfo) -> Sequence[str]:
    """Show a job."""
    return (
        job.id,
        job.name,
        job.cluster or "-",
        job.state,
        str(job.num_nodes),
        age(job.created_unix_s),
        ran(job),
        job.detail or "-",
    )


def amounts(value: Amounts) -> str:
    """Say amounts in one line: `2 CPUs, 4.0 GiB, 1 GPU`."""
    parts = []
    if value.cpus:
        parts.append(f"{show_number(value.cpus)} CPU{'' if value.cpus == 1 else 's'}")
    if value.memory_mib:
        parts.append(show_mib(value.memory_mib))
    if value.gpus:
        parts.append(f"{value.gpus} GPU{'' if value.gpus == 1 else 's'}")
    return ", ".join(parts) or "nothing"


def cluster_row(cluster: ClusterInfo) -> Sequence[str]:
    """Show a cluster."""
    return (
        cluster.name,
        cluster.state,
        str(cluster.num_nodes),
        amounts(cluster.resources),
        str(cluster.jobs_running),
        str(cluster.jobs_waiting),
        age(cluster.created_unix_s),
    )


def pairs(labels: dict[str, str]) -> str:
    """Say labels in one line."""
    return ",".join(f"{name}={value}" for name, value in labels.items()) or "-"


def left(sandbox: SandboxInfo) -> str:
    """Say what is left of a sandbox's time to live, or why it ended."""
    if sandbox.state == "ended":
        return sandbox.reason or "-"
    return show_duration(sandbox.expires_unix_s - time.time()) if sandbox.expires_unix_s else "-"


def sandbox_row(sandbox: SandboxInfo) -> Sequence[str]:
    """Show a sandbox."""
    return (
        sandbox.id,
        sandbox.state,
        sandbox.node,
        sandbox.template.image,
        age(sandbox.created_unix_s),
        left(sandbox),
        pairs(sandbox.labels),
    )


def limits_text(pool_or_sandbox: Pool | SandboxInfo) -> str:
    """Say the limits of a template."""
    limits = pool_or_sandbox.template.limits
    parts = []
    if limits.cpus is not None:
        parts.append(f"{show_number(limits.cpus)} CPUs")
    if limits.memory_mib is not None:
        parts.append(show_mib(limits.memory_mib))
    if limits.disk_mib is not None:
        parts.append(f"{show_mib(limits.disk_mib)} disk")
    if limits.pids is not None:
        parts.append(f"{limits.pids} processes")
    return ", ".join(parts) or "node's defaults"


def pool_row(pool: Pool) -> Sequence[str]:
    """Show a parked pool."""
    drained = show_duration(pool.drain_after_s) if pool.drain_after_s else "never"
    return (pool.template.image, limits_text(pool), str(pool.parked), drained)


def join_token_row(token: JoinToken) -> Sequence[str]:
    """Show a join token."""
    left_s = token.expires_unix_s - time.time()
    return (token.id, token.pool, str(token.uses_left), show_duration(left_s) if left_s > 0 else "expired")


def token_row(token: ApiToken) -> Sequence[str]:
    """Show a token of the API."""
    return (token.id, token.name, token.role, token.workspace, age(token.created_unix_s))


def moment(unix_s: float) -> str:
    """Write a time of the clock, in UTC."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if unix_s else "-"


def event_row(event: Event) -> Sequence[str]:
    """Show an event."""
    return (str(event.id), moment(event.at_unix_s), event.actor, event.verb, event.object, event.cause or "-")
