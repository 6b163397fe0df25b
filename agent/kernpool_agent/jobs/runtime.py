"""JobRuntime: starts job attempts under kp-init, follows them, stops them, finds them again after an agent's restart.

The supervisor (a kp-init that outlives agent and spawner) owns the processes, the log and the record. This class
attaches to each living supervisor and reads the record, the one truth about an attempt's state and end.
"""

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, final

from kernpool_agent.ceiling import User
from kernpool_agent.jobs.adopt import Attach, Conclude, Found, Remove, decide
from kernpool_agent.jobs.attempt import Attempt, StopOrder
from kernpool_agent.jobs.errors import JobNotFoundError, JobStartError
from kernpool_agent.jobs.log import JobLog
from kernpool_agent.jobs.names import key_of, name_of
from kernpool_agent.jobs.plan import job_plan
from kernpool_agent.jobs.record import end_of, lost, newest
from kernpool_agent.jobs.watch import DirectoryWatch
from kernpool_agent.records import AttemptKey
from kernpool_mesh.messages import AttemptStatus, StartAttempt
from kernpool_mesh.reasons import EndReason
from kernpool_sandbox.cgroups import CgroupTree
from kernpool_sandbox.kpinit.errors import GoneError, KpInitError, NoAnswerError
from kernpool_sandbox.kpinit.job import JobClient
from kernpool_sandbox.kpinit.plan import Ended, JobEvent, JobExited, JobPlan, LogGrew, StepStarted
from kernpool_sandbox.kpinit.record import JobRecord, JobState, read_job_record
from kernpool_sandbox.kpinit.spawner import SpawnerClient

_log = logging.getLogger(__name__)

_ATTACH_TIMEOUT_S: Final = 10.0
_ATTACHES_AT_ONCE: Final = 64
_RETRY_S: Final = 1.0
_SWEEP_WAITS_S: Final = (0.002, 0.01, 0.05, 0.2, 1.0, 2.0, 5.0)
"""Between tries to remove a cgroup whose last processes are still on their way out."""

SpawnerSource = Callable[[], Awaitable[SpawnerClient]]
"""Gives the connection to a spawner that lives, starting one if there is none; raises KpInitError."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """What JobRuntime needs to know of its node."""

    state_dir: Path
    """The spawner's state directory: attempts lie in `j/` below it."""
    user: User
    """Who jobs run as."""
    segment_bytes: int = 8 << 20
    """Size of one log segment: what is lost at once when the log's bound is reached."""


@final
class JobRuntime:
    """All attempts on this node. `on_update` is called in the event loop with each change of an attempt's state."""

    def __init__(
        self,
        config: JobConfig,
        spawner: SpawnerSource,
        cgroups: CgroupTree,
        on_update: Callable[[AttemptStatus], None],
    ) -> None:
        self._config = config
        self._spawner = spawner
        self._cgroups = cgroups
        self._on_update = on_update
        self._boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._watch = DirectoryWatch(asyncio.get_running_loop())
        self._attempts: dict[AttemptKey, Attempt] = {}
        """Every attempt that is not forgotten."""
        self._tasks: set[asyncio.Task[None]] = set()
        """What goes on behind the callers' backs: re-attaching, sweeping."""

    @classmethod
    async def open(
        cls,
        config: JobConfig,
        spawner: SpawnerSource,
        cgroups: CgroupTree,
        *,
        on_update: Callable[[AttemptStatus], None],
        accepted: Iterable[AttemptKey] = (),
    ) -> Self:
        """Adopt every attempt found on this node and those the journal has `accepted` and not seen the end of.

        Afterwards `statuses` tells them all; `on_update` is called for later changes alone.
        """
        runtime = cls(config, spawner, cgroups, on_update)
        await runtime._adopt(set(accepted))
        return runtime

    # --- what the agent asks ---

    async def start(self, spec: StartAttempt) -> None:
        """Start an attempt that the caller has journaled; raises JobStartError when nothing of it runs."""
        attempt = self._new_attempt(AttemptKey(spec.job_id, spec.index, spec.fence))
        try:
            await self._spawn(attempt, spec)
        except JobStartError:
            del self._attempts[attempt.key]
            self._in_background(self._sweep_cgroup(attempt.name))
            raise
        await self._attach(attempt)

    async def stop(self, job_id: str, index: int, fence: int, reason: EndReason, grace_s: float) -> None:
        """End an attempt: SIGTERM to all, SIGKILL after the grace period until none is left; its end follows.

        Returns when the supervisor has begun. One that has ended is left alone. Raises JobNotFoundError.
        """
        attempt = self._attempts.get(AttemptKey(job_id, index, fence))
        if attempt is None:
            raise JobNotFoundError(f"{AttemptKey(job_id, index, fence)} is not known on this node")
        if not attempt.ended:
            attempt.stop = StopOrder(reason, grace_s)
            await self._pass_stop_on(attempt)

    def statuses(self) -> list[AttemptStatus]:
        """Tell every attempt that is not forgotten."""
        return [
            attempt.snapshot() if attempt.ended else attempt.snapshot(self._log_of(attempt).end_offset)
            for attempt in self._attempts.values()
        ]

    def forget(self, job_ids: Iterable[str]) -> None:
        """Drop the ended attempts of these jobs with their logs and records; living ones stay."""
        wanted = set(job_ids)
        for key, attempt in list(self._attempts.items()):
            if key.job_id in wanted and attempt.ended:
                del self._attempts[key]
                self._in_background(self._remove_files(attempt.name))

    def log(self, job_id: str, index: int) -> JobLog:
        """Open the log of the newest attempt of a rank; the caller closes it. Raises JobNotFoundError."""
        key = newest(key for key in self._attempts if (key.job_id, key.index) == (job_id, index))
        if key is None:
            raise JobNotFoundError(f"no attempt of {job_id} rank {index} is known on this node")
        return self._log_of(self._attempts[key])

    async def close(self) -> None:
        """Detach: every attempt goes on."""
        for attempt in self._attempts.values():
            if attempt.client is not None:
                attempt.client.close()
                attempt.client = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._watch.close()

    # --- starting ---

    def _new_attempt(self, key: AttemptKey) -> Attempt:
        if key in self._attempts:
            raise JobStartError(f"{key} was started before")
        try:
            name = name_of(key)
        except ValueError as error:
            raise JobStartError(str(error)) from None
        attempt = Attempt(key, name, self._config.state_dir / "j" / name)
        self._attempts[key] = attempt
        return attempt

    async def _spawn(self, attempt: Attempt, spec: StartAttempt) -> None:
        try:
            self._cgroups.create(attempt.name)
            self._cgroups.limit(attempt.name, spec.limits)
        except OSError as error:
            raise JobStartError(f"{attempt.key}: its cgroup could not be made: {error}") from error
        plan = job_plan(
            spec,
            attempt.name,
            self._config.user,
            cgroups=self._cgroups.paths(attempt.name),
            segment_bytes=self._config.segment_bytes,
            rlimits=self._cgroups.kind == "none",
        )
        try:
            await self._spawn_once(attempt.name, plan)
        except (OSError, KpInitError) as error:
            raise JobStartError(f"{attempt.key}: the spawner could not start it: {error}") from error

    async def _spawn_once(self, name: str, plan: JobPlan) -> None:
        """Have a supervisor made. A spawner takes each name once, so asking a second one starts nothing twice."""
        try:
            spawned = await (await self._spawner()).spawn_job(name, plan)
        except GoneError:
            try:
                spawned = await (await self._spawner()).spawn_job(name, plan)
            except FileExistsError:
                return  # the one that died had begun; the attach tells how far it came
        os.close(spawned.pidfd)

    # --- following ---

    async def _attach(self, attempt: Attempt) -> None:
        """Connect to the attempt's supervisor; one that is gone has left its record."""
        try:
            attempt.client = await JobClient.attach(
                self._socket_of(attempt.name),
                lambda event: self._on_event(attempt, event),
                timeout_s=_ATTACH_TIMEOUT_S,
            )
        except GoneError:
            self._supervisor_left(attempt)
            return
        except NoAnswerError:
            self._in_background(self._attach_later(attempt))
            return
        self._read_record(attempt)  # what happened before the attach
        if attempt.stop is not None:
            await self._pass_stop_on(attempt)

    async def _attach_later(self, attempt: Attempt) -> None:
        await asyncio.sleep(_RETRY_S)
        if not attempt.ended:
            await self._attach(attempt)

    def _on_event(self, attempt: Attempt, event: JobEvent) -> None:
        match event:
            case StepStarted():
                self._read_record(attempt)
            case JobExited():
                self._conclude(attempt)
            case Ended():
                attempt.client = None
                self._supervisor_left(attempt)
            case LogGrew():
                pass  # followers are woken by the segments themselves

    def _supervisor_left(self, attempt: Attempt) -> None:
        """Its connection ended or never came: it is over, unless its socket is still listened on."""
        record = self._record_of(attempt.name)
        if (record is None or record.state is not JobState.ENDED) and self._is_listening(attempt.name):
            # Another agent took it over, or it had no time for us. Not at once: two agents would chase each other.
            self._in_background(self._attach_later(attempt))
        else:
            self._conclude(attempt)

    def _is_listening(self, name: str) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as probe:
            return probe.connect_ex(str(self._socket_of(name))) in (0, errno.EAGAIN)

    def _read_record(self, attempt: Attempt) -> None:
        record = self._record_of(attempt.name)
        if record is not None and record.state is not JobState.ENDED and attempt.record_read(record):
            self._on_update(attempt.snapshot())

    def _conclude(self, attempt: Attempt) -> None:
        """The supervisor is done or gone: read how it ended and tell it once."""
        if attempt.ended:
            return
        record = self._record_of(attempt.name)
        oom_kills = self._cgroups.oom_kills(attempt.name)
        if record is not None and record.state is JobState.ENDED:
            end = end_of(record, oom_kills)
        else:
            end = lost(record, self._boot_id, oom_kills)
        if attempt.client is not None:
            attempt.client.close()
            attempt.client = None
        attempt.concluded(record, end, self._log_of(attempt).end_offset)
        self._in_background(self._sweep_cgroup(attempt.name))
        self._watch.wake(attempt.directory)
        self._on_update(attempt.snapshot())

    async def _pass_stop_on(self, attempt: Attempt) -> None:
        """Tell the supervisor to stop; without one the order waits for the attach."""
        client, order = attempt.client, attempt.stop
        if client is None or order is None:
            return
        try:
            await client.stop(order.grace_s, order.reason.value)
        except (GoneError, NoAnswerError) as error:
            _log.info("%s: stop not taken (%s); it is passed on when the supervisor answers", attempt.key, error)
            return
        attempt.stop = None

    # --- adopting ---

    async def _adopt(self, accepted: set[AttemptKey]) -> None:
        found = {key for name in self._names_on_disk() if (key := key_of(name)) is not None}
        slots = asyncio.Semaphore(_ATTACHES_AT_ONCE)

        async def adopt_one(key: AttemptKey) -> None:
            async with slots:
                await self._adopt_one(self._new_attempt(key), accepted=key in accepted)

        async with asyncio.TaskGroup() as group:
            for key in sorted(found | accepted):
                group.create_task(adopt_one(key))
        for name in self._cgroups.existing():
            key = key_of(name)
            if key is not None and (key not in self._attempts or self._attempts[key].ended):
                self._in_background(self._sweep_cgroup(name))

    async def _adopt_one(self, attempt: Attempt, *, accepted: bool) -> None:
        client: JobClient | None = None
        answers = True
        try:
            client = await JobClient.attach(
                self._socket_of(attempt.name),
                lambda event: self._on_event(attempt, event),
                timeout_s=_ATTACH_TIMEOUT_S,
            )
        except GoneError:
            answers = self._is_listening(attempt.name)
            if answers:
                self._in_background(self._attach_later(attempt))
        except NoAnswerError:
            self._in_background(self._attach_later(attempt))
        record = self._record_of(attempt.name)
        oom_kills = self._cgroups.oom_kills(attempt.name)
        match decide(Found(answers, record, oom_kills, accepted), self._boot_id):
            case Attach():
                attempt.client = client
                if record is not None and record.state is not JobState.ENDED:
                    attempt.record_read(record)
            case Conclude(end):
                attempt.concluded(record, end, self._log_of(attempt).end_offset)
            case Remove():
                del self._attempts[attempt.key]
                self._in_background(self._remove_files(attempt.name))

    def _names_on_disk(self) -> set[str]:
        try:
            return {entry.name.removesuffix(".sock") for entry in os.scandir(self._config.state_dir / "j")}
        except FileNotFoundError:
            return set()

    # --- files and cgroups ---

    def _socket_of(self, name: str) -> Path:
        return self._config.state_dir / "j" / f"{name}.sock"

    def _record_of(self, name: str) -> JobRecord | None:
        try:
            return read_job_record(self._config.state_dir, name)
        except FileNotFoundError:
            return None
        except (KeyError, ValueError) as error:
            _log.warning("the record of %s is unreadable (%r): it counts as missing", name, error)
            return None

    def _log_of(self, attempt: Attempt) -> JobLog:
        return JobLog(attempt.directory, self._watch, lambda: attempt.ended, fence=attempt.key.fence)

    async def _sweep_cgroup(self, name: str) -> None:
        """Remove an ended attempt's cgroup; what a dead supervisor left in it is killed first."""
        for wait_s in _SWEEP_WAITS_S:
            if self._cgroups.pids(name):
                self._cgroups.kill(name)
            if self._cgroups.remove(name):
                return
            await asyncio.sleep(wait_s)
        _log.warning("cgroup %s cannot be removed: processes in it do not die (stuck in the kernel?)", name)

    async def _remove_files(self, name: str) -> None:
        """Remove an attempt's directory, one file at a time: segments are large and the loop must go on."""
        directory = self._config.state_dir / "j" / name
        with contextlib.suppress(FileNotFoundError):
            for entry in list(os.scandir(directory)):
                Path(entry.path).unlink(missing_ok=True)
                await asyncio.sleep(0)
            directory.rmdir()
        self._socket_of(name).unlink(missing_ok=True)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("background work on a job failed", exc_info=error)
