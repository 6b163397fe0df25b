"""Puts a runtime together: lock, spawner, isolation, cgroups, journal, images; and takes it apart again."""

import asyncio
import fcntl
import hashlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from kernpool_sandbox import cgroup_detect
from kernpool_sandbox.adoption import Adopted, Adoption
from kernpool_sandbox.cgroup_pool import CgroupPool
from kernpool_sandbox.cgroups import CgroupTree
from kernpool_sandbox.config import STATE_DIR_BYTES_MAX, RuntimeConfig, raise_open_files_limit
from kernpool_sandbox.errors import IsolationError, StartError, StateBusyError
from kernpool_sandbox.hostimage import HOST_TREES
from kernpool_sandbox.images import Images
from kernpool_sandbox.isolation import NodeIsolation, ask_kernel, host_facts, judge
from kernpool_sandbox.journal import Journal
from kernpool_sandbox.kpinit import binary
from kernpool_sandbox.kpinit.errors import KpInitError
from kernpool_sandbox.kpinit.launch import SpawnerConfig
from kernpool_sandbox.maker import SlotMaker
from kernpool_sandbox.planner import Planner
from kernpool_sandbox.slot import Slot
from kernpool_sandbox.spawning import Spawning
from kernpool_sandbox.sysfiles import read_text
from kernpool_sandbox.template import image_digest
from kernpool_sandbox.uids import UID_END, UidRanges, reserved_on_host

PROBE_WITHIN_S = 30.0
_LOCK_POLL_S = 0.05

log = logging.getLogger(__name__)


@final
@dataclass(frozen=True, slots=True)
class Parts:
    """What a runtime is made of."""

    config: RuntimeConfig
    isolation: NodeIsolation
    spawning: Spawning
    cgroups: CgroupPool
    journal: Journal
    images: Images
    planner: Planner
    maker: SlotMaker
    boot_id: str
    lock_fd: int

    async def adoption(self, on_dead: Callable[[Slot], None]) -> list[Adopted]:
        """Adopt or sweep what an earlier agent left."""
        return await Adoption(self.config, self.journal, self.cgroups, self.maker, on_dead).run(self.boot_id)

    def remove_unused_images(self) -> None:
        """Remove host images that no slot uses any more."""
        self.images.remove_unused(frozenset(image_digest(slot.key) for slot in self.maker.slots.values()))

    async def stop_spawner(self) -> None:
        """Make the spawner exit and remove the empty cgroups."""
        await self.spawning.stop()
        self.cgroups.tree.remove_base()

    async def close(self) -> None:
        """Let go of everything."""
        await self.images.close()
        self.spawning.close()
        self.journal.close()
        os.close(self.lock_fd)


async def open_parts(config: RuntimeConfig) -> Parts:
    """Take the state directory and put everything together. StateBusyError, StartError, OSError."""
    _check_state_dir(config.state_dir)
    config.images.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock_fd = await _lock(config.state_dir / "runtime.lock", config.lock_timeout_s)
    try:
        return await _open_locked(config, lock_fd)
    except BaseException:
        os.close(lock_fd)
        raise


async def _open_locked(config: RuntimeConfig, lock_fd: int) -> Parts:
    raise_open_files_limit()
    facts = cgroup_detect.detect(parent=config.cgroup_parent)
    tree, facts = _open_tree(facts, tag_of(config.state_dir))
    spawning = Spawning(_spawner_config(config, tree.bases), _binary(config))
    probing = asyncio.ensure_future(_probed(config))
    try:
        client = await spawning.connect()
    except (KpInitError, OSError) as error:
        probing.cancel()
        raise StartError(f"the spawner cannot be started: {error}") from error
    isolation = judge(await _answers(probing), replace(host_facts(), privileged=client.privileged), facts)
    boot_id = (read_text(Path("/proc/sys/kernel/random/boot_id")) or "").strip()
    journal = Journal(config.state_dir / "journal", boot_id)
    images = Images(config, isolation)
    cgroups = CgroupPool(tree)
    uids = UidRanges(config.uid_base, UID_END, reserved_on_host()) if isolation.uids == "range" else None
    maker = SlotMaker(config, spawning, journal, cgroups, uids)
    planner = Planner(config, isolation, images)
    return Parts(config, isolation, spawning, cgroups, journal, images, planner, maker, boot_id, lock_fd)


async def _probed(config: RuntimeConfig) -> dict[str, str]:
    return dict(config.probed) if config.probed is not None else await ask_kernel(config.images)


async def _answers(probing: "asyncio.Future[dict[str, str]]") -> dict[str, str]:
    try:
        return await probing
    except (IsolationError, OSError) as error:
        return dict.fromkeys(("userns", "mounts", "proc", "netns"), str(error))


def _open_tree(facts: cgroup_detect.CgroupFacts, tag: str) -> tuple[CgroupTree, cgroup_detect.CgroupFacts]:
    """Open the tree, or none with the kernel's reason; limits are rlimits then."""
    try:
        return cgroup_detect.open_tree(facts, tag), facts
    except OSError as error:
        none = cgroup_detect.CgroupFacts("none", {}, (f"cgroup {facts.kind} refused: {error}",))
        return cgroup_detect.open_tree(none, tag), none


def prepare_spawner(config: RuntimeConfig, owner_uid: int) -> tuple[Path, SpawnerConfig]:
    """Return kp-init's path and the ceiling for whoever runs the spawner itself (a unit of its own).

    `owner_uid` is the agent's user. Makes the directories of the cgroups; those and the state directory are the
    caller's to hand over. StartError, OSError.
    """
    tree, _ = _open_tree(cgroup_detect.detect(parent=config.cgroup_parent), tag_of(config.state_dir))
    return _binary(config), replace(_spawner_config(config, tree.bases), owner_uid=owner_uid)


def _spawner_config(config: RuntimeConfig, cgroup_bases: tuple[Path, ...]) -> SpawnerConfig:
    """Return the ceiling of the spawner: nothing outside of it can be mounted, joined or become."""
    if config.image_roots is None:
        sources: tuple[Path, ...] = (Path("/"),)
    else:
        sources = (*map(Path, HOST_TREES), config.state_dir, config.images, *config.image_roots)
    uids = ((config.uid_base, UID_END - 1), *config.job_ids) if os.geteuid() == 0 else ()
    return SpawnerConfig(config.state_dir, tuple(path for path in sources if path.exists()), cgroup_bases, uids)


def _binary(config: RuntimeConfig) -> Path:
    try:
        return config.binary or binary.find()
    except KpInitError as error:
        raise StartError(f"kp-init is missing: {error}") from error


def tag_of(state_dir: Path) -> str:
    """Return the short name that tells the cgroups of one state directory from those of others."""
    return hashlib.sha256(os.fsencode(state_dir.resolve())).hexdigest()[:10]


def _check_state_dir(state_dir: Path) -> None:
    length = len(os.fsencode(state_dir))
    if length > STATE_DIR_BYTES_MAX:
        raise StartError(f"the state directory's path has {length} bytes; sockets need at most {STATE_DIR_BYTES_MAX}")
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    state_dir.chmod(0o700)
    # Not `s`: the spawner makes it, as a link that dangles while no spawner lives.
    (state_dir / "j").mkdir(mode=0o700, exist_ok=True)


async def _lock(path: Path, timeout_s: float) -> int:
    """Take the lock of a state directory, waiting for an agent that is just going."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    try:
        while not _try_lock(fd):
            if asyncio.get_running_loop().time() > deadline_s:
                raise StateBusyError(f"another agent holds {path.parent}; stop it first, or use another --state-dir")
            await asyncio.sleep(_LOCK_POLL_S)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
