"""Starts the node's spawner, detached, so that it outlives whoever started it."""

import asyncio
import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from kernpool_sandbox.kpinit.errors import GoneError, KpInitError
from kernpool_sandbox.kpinit.spawner import SpawnerClient

_RETRY_S: Final = 0.005
_LOG_TAIL_BYTES: Final = 2000
_EXIT_LOCKED: Final = 75


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
    """Host id ranges (first, last) for sandbox maps and for job users and groups; a rootless spawner has its own."""
    runtime_dir: Path | None = None
    """Where the sockets and end records of sandboxes lie (`s` becomes a link to it); None: `default_runtime_dir`."""
    owner_uid: int | None = None
    """An agent that runs as another user than the spawner: it owns the state directory and may connect."""

    @property
    def socket_path(self) -> Path:
        """Where the spawner listens."""
        return self.state_dir / "spawner.sock"


def _is_tmpfs(path: Path) -> bool:
    """Say whether the longest mount point above a path is a tmpfs."""
    best, kind = "", ""
    for line in Path("/proc/self/mounts").read_text(errors="replace").splitlines():
        _, mount_point, fs_type, *_ = line.split(" ")
        if path.is_relative_to(mount_point) and len(mount_point) >= len(best):
            best, kind = mount_point, fs_type
    return kind == "tmpfs"


def default_runtime_dir(state_dir: Path) -> Path:
    """Choose where the small files of sandboxes lie: on a tmpfs where there is one, else in the state directory.

    A disk filesystem needs some tenths of a millisecond to make a file when many were removed just before.
    """
    state = state_dir.resolve()
    if _is_tmpfs(state):
        return state / "s"
    name = f"kernpool-{os.geteuid()}-{hashlib.sha256(str(state).encode()).hexdigest()[:12]}"
    for parent in (os.environ.get("XDG_RUNTIME_DIR", ""), "/run", "/dev/shm"):
        directory = Path(parent)
        if parent and directory.is_dir() and os.access(directory, os.W_OK | os.X_OK) and _is_tmpfs(directory.resolve()):
            return directory / name
    return state / "s"


def spawner_argv(binary: Path, config: SpawnerConfig) -> list[str]:
    """Return the command line of `kp-init spawner` for this configuration."""
    argv = [str(binary), "spawner", "--state", str(config.state_dir)]
    runtime = config.runtime_dir or default_runtime_dir(config.state_dir)
    if runtime.parent != config.state_dir.resolve():
        argv += ["--runtime", str(runtime)]
    for prefix in config.allow_sources:
        argv += ["--allow-source", str(prefix)]
    for prefix in config.allow_cgroups:
        argv += ["--allow-cgroup", str(prefix)]
    for first, last in config.allow_uids:
        argv += ["--allow-ids", f"{first}-{last}"]
    if config.owner_uid is not None:
        argv += ["--owner", str(config.owner_uid)]
    return argv


async def _answers(config: SpawnerConfig) -> bool:
    try:
        client = await SpawnerClient.connect(config.socket_path)
    except GoneError:
        return False
    client.close()
    return True


def remove_runtime_dir(config: SpawnerConfig) -> None:
    """Remove what sandboxes have left outside the state directory (sockets, end records), once the spawner is stopped
    and nothing of them lives or is wanted any more."""
    runtime = config.runtime_dir or default_runtime_dir(config.state_dir)
    if runtime.parent != config.state_dir.resolve():
        shutil.rmtree(runtime, ignore_errors=True)
        link = config.state_dir / "s"
        if link.is_symlink():
            link.unlink()


async def ensure_spawner(config: SpawnerConfig, binary: Path, *, log_path: Path, timeout_s: float = 10.0) -> None:
    """Return when a spawner answers at the socket: the one that runs, else a new one in a session of its own.

    Raises KpInitError with the end of its log when it does not come up.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not await _answers(config):
        status = await _start(spawner_argv(binary, config), log_path)
        if (status not in (0, _EXIT_LOCKED)) or loop.time() > deadline:
            tail = log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
            raise KpInitError(f"the spawner did not come up (exit status {status}); the end of {log_path}:\n{tail}")
        if status == _EXIT_LOCKED:  # another one is just starting, or just ending
            await asyncio.sleep(_RETRY_S)


async def _start(argv: list[str], log_path: Path) -> int:
    """Start a spawner that detaches itself, and return 0 when it listens."""
    with log_path.open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *argv, "--daemon", "yes", stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    return await process.wait()
