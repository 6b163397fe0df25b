"""Stopping the embedded install: its work first (unless kept), then agent, coordinator and what is left of the work."""

import contextlib
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from kernpool.embedded import lock
from kernpool.embedded.layout import Home
from kernpool.embedded.processes import child_environment, daemons, work_processes
from kernpool.embedded.start import Say, agent_process, coordinator_process
from kernpool.endpoint import find_endpoint
from kernpool.errors import KernpoolError, StartError
from kernpool.sdk.client import Client

WORK_END_S: Final = 30.0
ALL_WORK_S: Final = 60.0
AGENT_GRACE_S: Final = 15.0
COORDINATOR_GRACE_S: Final = 15.0
UNFINISHED: Final = ("pending", "starting", "setting_up", "running", "cancelling")


@final
@dataclass(frozen=True, slots=True)
class Work:
    """What a stop would end."""

    jobs: int
    sandboxes: int

    @property
    def any(self) -> bool:
        """There is some."""
        return bool(self.jobs or self.sandboxes)

    def __str__(self) -> str:
        counts = ((self.jobs, "job", "jobs"), (self.sandboxes, "sandbox", "sandboxes"))
        parts = [f"{count} {one if count == 1 else many}" for count, one, many in counts if count]
        return " and ".join(parts) or "nothing"


@final
@dataclass(frozen=True, slots=True)
class Stopped:
    """What a stop found."""

    was_running: bool


def current_work(home: Home) -> Work:
    """Count what runs: as the coordinator tells, else by the sockets on disk."""
    with contextlib.suppress(KernpoolError):
        with Client(endpoint=find_endpoint(environ={})) as client:
            status = client.status()
        jobs = sum(status.jobs.get(state, 0) for state in UNFINISHED)
        return Work(jobs, status.sandboxes.get("running", 0))
    return Work(len(_sockets(home.work / "j")), len(_sockets(home.work / "s")))


def stop(home: Home, *, keep_work: bool, say: Say) -> Stopped:
    """Stop everything, each step bounded. Raises StartError where a process is not ours to end."""
    if not home.path.is_dir():
        return Stopped(was_running=False)
    with lock.held(home, lambda: say("Another start or stop is under way; waiting for it ...")):
        try:
            return _stop(home, keep_work=keep_work, say=say)
        except PermissionError as error:
            raise StartError(
                f"The processes of {home.path} belong to another user.", hint="Run this as the user that started them."
            ) from error


def _stop(home: Home, *, keep_work: bool, say: Say) -> Stopped:
    agent, coordinator = agent_process(home), coordinator_process(home)
    has_work = not keep_work and (agent is not None or bool(_listeners(home)))
    if has_work and agent is not None and coordinator is not None:
        _cancel_work(say)
    if has_work:
        _end_all_work(home, say)
    for process, grace_s, what in (
        (agent, AGENT_GRACE_S, "agent"),
        (coordinator, COORDINATOR_GRACE_S, "coordinator"),
    ):
        if process is not None:
            with process:
                if not process.end(grace_s):
                    say(f"The {what} did not stop within {grace_s:.0f} s and was killed.")
    was_starting = _end_starting(home)
    home.endpoint_file.unlink(missing_ok=True)
    home.join_token_file.unlink(missing_ok=True)
    if not keep_work:
        _end_left(home, say)
    return Stopped(was_running=agent is not None or coordinator is not None or has_work or was_starting)


def _end_starting(home: Home) -> bool:
    """End the daemons of a start that was interrupted before they wrote their pid files; True when there were some."""
    young = [*daemons(home.agent, "kernpool_agent"), *daemons(home.coordinator, "kernpool_coordinator")]
    for process in young:
        with process:
            process.end(COORDINATOR_GRACE_S)
    return bool(young)


def _end_all_work(home: Home, say: Say) -> None:
    """Let the agent (or, where none lives, one for this moment) end all that runs, with its cgroups and mounts."""
    command = [sys.executable, "-P", "-m", "kernpool_agent", "stop", "--all-work"]
    settings = [f"--state-dir={home.agent}", f"--timeout-s={ALL_WORK_S}"]
    try:
        done = subprocess.run(
            [*command, *settings], capture_output=True, env=child_environment(), cwd="/", timeout=ALL_WORK_S + 15,
            check=False,
        )  # fmt: skip
        trouble = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] if done.returncode else []
    except (OSError, subprocess.TimeoutExpired) as error:
        trouble = [str(error)]
    for line in trouble:
        say(f"Ending the work in order failed ({line}); its processes are killed now.")


def _cancel_work(say: Say) -> None:
    """Ask the coordinator to end all jobs and sandboxes, so that its records say so."""
    try:
        with Client(endpoint=find_endpoint(environ={})) as client:
            client.sandboxes.remove(all=True)
            jobs = [client.job(info.id) for info in client.jobs(state=UNFINISHED)]
            for job in jobs:
                job.cancel()
            deadline_s = time.monotonic() + WORK_END_S
            for job in jobs:
                job.wait(max(0.0, deadline_s - time.monotonic()))
    except TimeoutError:
        say(f"Some jobs did not end within {WORK_END_S:.0f} s; their processes are killed now.")
    except KernpoolError as error:
        say(f"{error.message} Ending its work without it.")


def _listeners(home: Home) -> list[Path]:
    """List the sockets of the spawner, of PID 1 of every sandbox and of the supervisor of every job."""
    spawner = home.work / "spawner.sock"
    return [*([spawner] if spawner.exists() else []), *_sockets(home.work / "s"), *_sockets(home.work / "j")]


def _end_left(home: Home, say: Say) -> None:
    """Kill what outlived an end in order: a bug or a full disk must not make a machine unstoppable."""
    left = work_processes(home.work)
    if left:
        say(f"{len(left)} processes of the work outlived its end and are killed.")
    for process in left:
        with process:
            process.end(0.0)


def _sockets(directory: Path) -> list[Path]:
    try:
        return sorted(directory.glob("*.sock"))
    except OSError:
        return []
