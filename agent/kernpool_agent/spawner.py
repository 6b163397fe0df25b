"""Who owns the node's work: the spawner, found where kp-work.service runs it, else started beside an embedded agent.

Under systemd `kp-agent work` becomes the spawner in the foreground of kp-work.service, in a leaf cgroup of its own, so
that restarting kp-agent.service (or its death) touches no work. Embedded, it is started in a session of its own.
"""

import contextlib
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path

from kernpool_agent import ceiling
from kernpool_agent.ceiling import Ceiling, User
from kernpool_agent.config import Config
from kernpool_agent.errors import SpawnerError
from kernpool_agent.statedir import replace_file
from kernpool_sandbox.config import RuntimeConfig
from kernpool_sandbox.kpinit.launch import spawner_argv
from kernpool_sandbox.startup import prepare_spawner

log = logging.getLogger(__name__)

LEAF = "spawner"
"""Name of the spawner's own leaf below the unit's cgroup: v2 allows no processes beside divided children."""
PARENT_FILE = "cgroup-parent"
"""In the work directory: the cgroup of the unit that owns the work, written by that unit."""
CGROUPS = Path("/sys/fs/cgroup")


def runtime_config(config: Config, allowed: Ceiling, user: User) -> RuntimeConfig:
    """Return the sandbox runtime's settings under the owner's ceiling."""
    return RuntimeConfig(
        state_dir=config.work_dir,
        image_roots=tuple(map(Path, allowed.image_dirs)) or None,
        hidden_paths=(config.state_dir,),
        cgroup_parent=config.cgroup_parent or unit_of_work(config.work_dir),
        cold_concurrency=config.creates_at_once,
        job_ids=_job_ids(user),
    )


def _job_ids(user: User) -> tuple[tuple[int, int], ...]:
    return tuple((number, number) for number in sorted({user.uid, user.gid, *user.groups}))


def unit_of_work(work_dir: Path) -> str:
    """Return the cgroup that kp-work.service said it owns, or "" when work has no unit of its own."""
    try:
        return (work_dir / PARENT_FILE).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def become_spawner(config: Config) -> None:
    """Replace this process by the spawner. Raises SpawnerError, ConfigError, SandboxError."""
    allowed = ceiling.load(config.node_file)
    user = ceiling.job_user(allowed, config.jobs_as)
    try:
        config.work_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        _settle_in_unit(config.work_dir, os.environ)
        binary, spawner = prepare_spawner(runtime_config(config, allowed, user))
        argv = spawner_argv(binary, spawner)
        log.info("spawner of %s; jobs run as %s", config.work_dir, user.name)
        os.execv(argv[0], argv)
    except OSError as error:
        raise SpawnerError(f"the spawner cannot be started: {error}") from error


def _settle_in_unit(work_dir: Path, environ: Mapping[str, str]) -> None:
    """Say which unit owns the work, and leave its top cgroup so that it can be divided; no unit: say nothing."""
    unit = own_unit(Path("/proc/self/cgroup").read_text(encoding="utf-8")) if "INVOCATION_ID" in environ else ""
    if not unit:
        (work_dir / PARENT_FILE).unlink(missing_ok=True)
        return
    for top in (CGROUPS, CGROUPS / "unified", CGROUPS / "systemd"):
        directory = top / unit
        if (directory / "cgroup.procs").exists():
            with contextlib.suppress(FileExistsError):
                (directory / LEAF).mkdir()
            (directory / LEAF / "cgroup.procs").write_text("0", encoding="ascii")
    replace_file(work_dir / PARENT_FILE, unit.encode() + b"\n")


def own_unit(text: str) -> str:
    """Return the path of the systemd unit that /proc/self/cgroup names, without a leading slash; "" outside a unit."""
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        if names in ("", "name=systemd") and (found := re.fullmatch(r"/(.*\.service)(/.*)?", path)):
            return found.group(1)
    return ""
