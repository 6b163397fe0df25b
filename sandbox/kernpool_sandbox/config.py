"""How a node's sandbox runtime is set up: where its state lies, and the bounds within which templates may ask."""

import resource
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from kernpool_mesh.messages import Limits
from kernpool_sandbox.pool import PoolPolicy
from kernpool_sandbox.uids import UID_BASE

STATE_DIR_BYTES_MAX = 70
"""A socket's path may have 107 bytes, and kp-init's sockets lie below the state directory."""


@final
@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """Settings of one runtime; one state directory belongs to one runtime at a time."""

    state_dir: Path
    """Made 0700 when missing: sockets, records, journal, images."""
    default_limits: Limits = field(default_factory=lambda: Limits(0, 2048, 1024, 1024))
    """For what a template leaves at 0; its disk is memory too (a tmpfs), so both are bounded."""
    pool: PoolPolicy = field(default_factory=PoolPolicy)
    sandboxes_max: int = 8192
    """Living and parked ones together."""
    uid_base: int = UID_BASE
    images_dir: Path | None = None
    """Where prepared images lie, on a filesystem that can be idmapped; None: in the state directory."""
    image_roots: tuple[Path, ...] | None = None
    """Directories under which images given by path must lie; None: anywhere but the host's own system directories."""
    hidden_paths: tuple[Path, ...] = ()
    """Never shown in a host image even where they lie under /usr: the agent's own home and state."""
    image_bytes_max: int = 32 << 30
    """A tar may unpack to so much."""
    job_ids: tuple[tuple[int, int], ...] = ()
    """Host ids (first, last) that jobs may run as besides the agent's own: part of the spawner's ceiling."""
    probed: Mapping[str, str] | None = None
    """What probe.py answered to somebody with the spawner's rights; None: it is asked with our own."""
    cgroup_parent: str = ""
    """Where cgroups are made: a v2 path such as system.slice/kp-work.service, or a v1 sub-directory; empty: the top."""
    binary: Path | None = None
    """kp-init; None: the one of this installation."""
    lock_timeout_s: float = 10.0
    """So long `open` waits for an earlier agent to let go of the state directory."""
    cold_concurrency: int = 64
    """Sandboxes that are made cold at the same time; the others wait in order."""
    removal_concurrency: int = 32
    create_timeout_s: float = 30.0
    remove_timeout_s: float = 30.0

    @property
    def images(self) -> Path:
        """Where prepared images lie."""
        return self.images_dir or self.state_dir / "images"

    def with_defaults(self, limits: Limits) -> Limits:
        """Return limits with this node's defaults for what was left at 0."""
        default = self.default_limits
        return Limits(
            limits.cpu_millis or default.cpu_millis,
            limits.memory_mib or default.memory_mib,
            limits.disk_mib or default.disk_mib,
            limits.pids or default.pids,
        )


def raise_open_files_limit() -> int:
    """Raise this process's soft limit of open files to the hard one (each sandbox needs two) and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
