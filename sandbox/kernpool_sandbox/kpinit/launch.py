"""Starts the node's spawner, detached, so that it outlives whoever started it."""

from dataclasses import dataclass
from pathlib import Path
from typing import final


@final
@dataclass(frozen=True, slots=True)
class SpawnerConfig:
    """The ceiling of one spawner: nothing outside it can be asked for."""

    state_dir: Path
    """Made 0700 when missing; sockets and records lie in `s/` (sandboxes) and `j/` (jobs). At most 70 bytes long."""
    allow_sources: tuple[Path, ...] = ()
    """Prefixes under which every Bind source and Overlay lower must lie; each must exist at the start."""
    allow_cgroups: tuple[Path, ...] = ()
    """Prefixes under which every cgroup directory must lie; each must exist at the start."""
    allow_uids: tuple[tuple[int, int], ...] = ()
    """Host id ranges (first, last) for sandbox maps and job users. A rootless spawner has its own id alone."""
    owner_uid: int | None = None
    """An agent that runs as another user than the spawner: it owns the state directory and may connect."""

    @property
    def socket_path(self) -> Path:
        """Where the spawner listens."""
        return self.state_dir / "spawner.sock"


def spawner_argv(binary: Path, config: SpawnerConfig) -> list[str]:
    """Return the command line of `kp-init spawner` for this configuration."""
    raise NotImplementedError


async def ensure_spawner(config: SpawnerConfig, binary: Path, *, log_path: Path, timeout_s: float = 10.0) -> None:
    """Return when a spawner answers at the socket: the one that runs, else a new one in a session of its own.

    Raises KpInitError with the end of its log when it does not come up.
    """
    raise NotImplementedError
