"""From the coordinator's StartAttempt to kp-init's JobPlan: steps, working directory, environment, limits.

The texts of `setup` and `run` travel in the environment: argv is seen by every user of the machine, and a file would
need an owner. Each step's shell takes its text out of the environment and evaluates it, so the job's own processes do
not inherit it.
"""

import os
import resource
import shutil
from typing import Final

from kernpool_agent.ceiling import User
from kernpool_agent.jobs.environment import SYSTEM_PATH, job_environment
from kernpool_agent.jobs.errors import JobStartError
from kernpool_mesh.messages import Limits, StartAttempt
from kernpool_sandbox.kpinit.plan import JobPlan, JobUser, Rlimit, Step

SETUP: Final = "setup"
RUN: Final = "run"
TEXT_BYTES_MAX: Final = 96 * 1024
"""Of setup and run together: a plan travels in one frame of 128 KiB, and the kernel takes no longer string."""
ENV_BYTES_MAX: Final = 24 * 1024
SKY_WORKDIR: Final = "sky_workdir"
"""Files written for SkyPilot expect to start in ~/sky_workdir; it is made for those that name it."""
_SETUP_TEXT: Final = "KP_SETUP_TEXT"
_RUN_TEXT: Final = "KP_RUN_TEXT"


def job_plan(
    spec: StartAttempt,
    supervisor_id: str,
    user: User,
    *,
    cgroups: tuple[str, ...],
    segment_bytes: int,
    rlimits: bool = False,
) -> JobPlan:
    """Make the plan of one attempt (`rlimits`: there are no cgroups to hold its limits); raises JobStartError."""
    env = job_environment(spec, user)
    _check_sizes(spec, env)
    steps = [_step(name, spec) for name, text in ((SETUP, spec.setup), (RUN, spec.run)) if text]
    if not steps:
        raise JobStartError(f"{spec.job_id} has neither setup nor run: there is nothing to start")
    env[_SETUP_TEXT], env[_RUN_TEXT] = spec.setup, spec.run
    return JobPlan(
        job_id=supervisor_id,
        steps=tuple(steps),
        env=env,
        cwd=user.home,
        user=_identity(user),
        cgroups=cgroups,
        log_bytes_max=spec.log_bytes_max,
        segment_bytes=min(segment_bytes, max(64 * 1024, spec.log_bytes_max // 8)),
        grace_s=spec.grace_s,
        timeout_s=spec.timeout_s,
        rlimits=_rlimits(spec.limits) if rlimits else (),
    )


def _step(name: str, spec: StartAttempt) -> Step:
    variable = _SETUP_TEXT if name == SETUP else _RUN_TEXT
    enter = f'mkdir -p -- "$HOME/{SKY_WORKDIR}" && cd -- "$HOME/{SKY_WORKDIR}" || exit 1; '
    prefix = enter if SKY_WORKDIR in spec.setup or SKY_WORKDIR in spec.run else ""
    text = f'{prefix}kp_text=${variable}; unset {_SETUP_TEXT} {_RUN_TEXT}; eval -- "$kp_text"'
    # Not a login shell: a profile costs up to 100 ms and differs from user to user. $0 is the step's name: bash says it
    # in its messages.
    return Step(name, (_bash(), "-c", text, name))


def _bash() -> str:
    found = shutil.which("bash", path=SYSTEM_PATH)
    if found is None:
        raise JobStartError("this node has no bash, and the setup and run texts of a job are bash; install it")
    return found


def _identity(user: User) -> JobUser | None:
    if user.uid == os.geteuid() != 0:
        return None  # an ordinary user's spawner has this identity already and could take no other
    return JobUser(user.uid, user.gid, user.groups)


def _rlimits(limits: Limits) -> tuple[Rlimit, ...]:
    """Limit each process's memory where the whole job's cannot be; RLIMIT_NPROC counts all of a user: not for jobs."""
    return (Rlimit(resource.RLIMIT_AS, limits.memory_mib << 20),) if limits.memory_mib else ()


def _check_sizes(spec: StartAttempt, env: dict[str, str]) -> None:
    text_bytes = len(os.fsencode(spec.setup)) + len(os.fsencode(spec.run))
    if text_bytes > TEXT_BYTES_MAX:
        raise JobStartError(
            f"setup and run of {spec.job_id} are {text_bytes} bytes together, at most {TEXT_BYTES_MAX} are taken; "
            "put the long part into a file and call it"
        )
    env_bytes = sum(len(os.fsencode(name)) + len(os.fsencode(value)) + 2 for name, value in env.items())
    if env_bytes > ENV_BYTES_MAX:
        raise JobStartError(
            f"the environment of {spec.job_id} has {env_bytes} bytes, at most {ENV_BYTES_MAX} are taken"
        )
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise JobStartError(f"{spec.job_id}: {name!r} cannot be an environment variable")
    if "\0" in spec.setup + spec.run:
        raise JobStartError(f"{spec.job_id}: setup and run may hold no NUL byte")
