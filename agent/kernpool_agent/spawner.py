"""Who owns the node's work: the spawner, found where kp-work.service runs it, else started beside an embedded agent.

Under systemd `kp-agent work` becomes the spawner in the foreground of kp-work.service, as root and in a cgroup of its
own, so that restarting kp-agent.service (or its death) touches no work, and the agent needs no rights: link, HTTP and
images are handled as user `kernpool`, and root lives in the spawner alone, which takes a closed list of requests within
the owner's ceiling. Embedded, the spawner is started with the agent's own rights, in a session of its own.
"""

import asyncio
import logging
import os
import pwd
import tempfile
from dataclasses import replace
from pathlib import Path

from kernpool_agent import ceiling, workunit
from kernpool_agent.ceiling import Ceiling, User
from kernpool_agent.config import Config
from kernpool_agent.errors import ConfigError, SpawnerError
from kernpool_sandbox.config import RuntimeConfig
from kernpool_sandbox.isolation import ask_kernel
from kernpool_sandbox.kpinit.launch import spawner_argv
from kernpool_sandbox.startup import prepare_spawner

log = logging.getLogger(__name__)


def runtime_config(config: Config, allowed: Ceiling, user: User) -> RuntimeConfig:
    """Return the sandbox runtime's settings under the owner's ceiling.

    On an install (jobs_as "job_user") images by path lie below `image_dirs` or nowhere: the spawner is root there, and
    an agent that was taken over must not be able to show itself the whole disk. Embedded, they may lie anywhere: the
    spawner can do no more than the person who started it.
    """
    anywhere = config.jobs_as == "starter" and not allowed.image_dirs
    return RuntimeConfig(
        state_dir=config.work_dir,
        image_roots=None if anywhere else tuple(map(Path, allowed.image_dirs)),
        hidden_paths=(config.state_dir,),
        probed=workunit.probed(config.work_dir),
        cgroup_parent=config.cgroup_parent or workunit.parent_of_work(config.work_dir),
        cold_concurrency=config.creates_at_once,
        job_ids=tuple((number, number) for number in sorted({user.uid, user.gid, *user.groups})),
    )


def become_spawner(config: Config) -> None:
    """Replace this process by the spawner. Raises SpawnerError, ConfigError, SandboxError."""
    allowed = ceiling.load(config.node_file)
    user = ceiling.job_user(allowed, config.jobs_as)
    owner_uid = _agent_uid(config.agent_user)
    unit = workunit.own_unit(Path("/proc/self/cgroup").read_text(encoding="utf-8")) if _under_systemd() else ""
    try:
        work_fd = workunit.make_directories(config.state_dir, config.work_dir, owner_uid)
        parent = config.cgroup_parent or workunit.prepare(work_fd, owner_uid, unit=unit)
        settings = replace(runtime_config(config, allowed, user), cgroup_parent=parent)
        binary, spawner = prepare_spawner(settings, owner_uid)
        workunit.leave_answers(work_fd, _ask_kernel(config.state_dir.parent))
        for base in spawner.allow_cgroups:
            workunit.hand_over(base, owner_uid)
        argv = spawner_argv(binary, spawner)
        log.info("spawner of %s for uid %d; jobs run as %s", config.work_dir, owner_uid, user.name)
        os.execv(argv[0], argv)
    except OSError as error:
        raise SpawnerError(f"the spawner cannot be started: {error}") from error


def _ask_kernel(directory: Path) -> dict[str, str]:
    """Try with our own rights what the spawner will do, on the filesystem where images lie.

    Beside the state directory, not in it: a user namespace that maps root alone cannot enter another user's directory.
    """
    with tempfile.TemporaryDirectory(dir=directory, prefix=".probe-") as scratch:
        return asyncio.run(ask_kernel(Path(scratch)))


def _under_systemd() -> bool:
    return "INVOCATION_ID" in os.environ


def _agent_uid(name: str) -> int:
    if not name:
        return os.geteuid()
    if name.isdecimal():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise ConfigError(
            f"agent_user {name} does not exist here; make it (useradd --system {name}) or name another one"
        ) from None
