"""A job under its supervisor: steps, log, record, deadlines, and what it survives."""

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from kernpool_sandbox.kpinit.channel import wait_fd
from kernpool_sandbox.kpinit.errors import GoneError
from kernpool_sandbox.kpinit.job import JobClient
from kernpool_sandbox.kpinit.plan import (
    Ended,
    JobCause,
    JobEvent,
    JobExited,
    JobPlan,
    JobUser,
    Kind,
    LogGrew,
    Spawned,
    Step,
    StepStarted,
)
from kernpool_sandbox.kpinit.record import JobRecord, JobState, read_job_record

ENV = {"PATH": "/usr/bin:/bin", "HOME": "/"}


def sh(*scripts: str, **fields: Any) -> JobPlan:
    """Return a plan with one shell script per step."""
    steps = tuple(Step(f"step{i}", ("sh", "-c", script)) for i, script in enumerate(scripts))
    return JobPlan("job", **{"steps": steps, "env": ENV, "cwd": "/", "grace_s": 5.0, **fields})


class Jobs:
    """Starts jobs on a node and waits for their ends."""

    def __init__(self, node: Any) -> None:
        self.node = node
        self.spawned: list[Spawned] = []

    async def start(self, plan: JobPlan, name: str = "job") -> Spawned:
        spawned: Spawned = await self.node.client.spawn_job(name, plan)
        self.spawned.append(spawned)
        return spawned

    async def run(self, plan: JobPlan, name: str = "job") -> JobRecord:
        await wait_fd((await self.start(plan, name)).pidfd, timeout_s=20)
        return self.record(name)

    def record(self, name: str = "job") -> JobRecord:
        return read_job_record(self.node.config.state_dir, name)

    def log(self, name: str = "job") -> bytes:
        return b"".join(path.read_bytes() for path in self.segments(name))

    def segments(self, name: str = "job") -> list[Path]:
        return sorted((self.node.config.state_dir / "j" / name).glob("log.*"))

    async def attach(self, name: str = "job") -> tuple[JobClient, "asyncio.Queue[JobEvent]"]:
        events: asyncio.Queue[JobEvent] = asyncio.Queue()
        path = self.node.config.state_dir / "j" / f"{name}.sock"
        return await JobClient.attach(path, events.put_nowait), events

    def close(self) -> None:
        for spawned in self.spawned:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(spawned.pidfd, signal.SIGTERM)
            os.close(spawned.pidfd)


@pytest.fixture
def jobs(node: Any) -> Any:
    started = Jobs(node)
    yield started
    started.close()


async def test_steps_run_in_order_and_the_log_has_it_all(jobs: Jobs) -> None:
    """setup, then run; both streams in one log, as on a terminal."""
    record = await jobs.run(sh("echo one; echo two >&2", "echo three; exit 0"))
    assert (record.state, record.cause, record.exit_code, record.step) == (JobState.ENDED, JobCause.EXITED, 0, 1)
    assert record.step_name == "step1"
    assert jobs.log() == b"one\ntwo\nthree\n"
    assert record.log_bytes == 14
    assert record.started_unix_ms <= record.ended_unix_ms


async def test_a_failed_step_ends_the_job(jobs: Jobs) -> None:
    """When `setup` fails, `run` must not."""
    record = await jobs.run(sh("exit 3", "echo never"))
    assert (record.cause, record.exit_code, record.step) == (JobCause.EXITED, 3, 0)
    assert jobs.log() == b""


async def test_a_step_that_cannot_start_says_why(jobs: Jobs) -> None:
    """The record names the step, what could not be done and the kernel's word for it."""
    record = await jobs.run(sh(steps=(Step("run", ("/no/such/thing",)),)))
    assert record.cause is JobCause.START_FAILED
    assert record.detail == "step run: the program: No such file or directory"
    record = await jobs.run(sh("true", cwd="/nowhere"), "job-2")
    assert record.detail == "step step0: the working directory: No such file or directory"


async def test_events_tell_an_attached_agent_what_happens(jobs: Jobs, state_dir: Path) -> None:
    """Logs are followed by hints, and the end is told once nothing is left."""
    gate = state_dir / "gate"
    os.mkfifo(gate)
    await jobs.start(sh(f"read x < {gate}; echo hello", "exit 5"))
    client, events = await jobs.attach()
    assert (client.hello.kind, client.hello.id) == (Kind.JOB, "job")
    gate.write_text("go\n")
    seen: list[JobEvent] = []
    while not seen or not isinstance(seen[-1], Ended):
        seen.append(await asyncio.wait_for(events.get(), 20))
    kinds = [type(event) for event in seen]
    assert kinds.index(LogGrew) < kinds.index(JobExited) < kinds.index(Ended)
    assert [event for event in seen if isinstance(event, StepStarted)][-1].index == 1
    assert [event for event in seen if isinstance(event, LogGrew)][-1].end_offset == 6
    assert [event.exit_code for event in seen if isinstance(event, JobExited)] == [5]
    client.close()
    with pytest.raises(GoneError):
        await jobs.attach()


async def test_the_log_rotates_within_its_bound(jobs: Jobs) -> None:
    """A job that writes for a week must not fill the node's disk; the newest bytes are kept."""
    record = await jobs.run(sh("seq 1 20000", segment_bytes=8192, log_bytes_max=32768))
    total = b"".join(b"%d\n" % i for i in range(1, 20001))
    segments = jobs.segments()
    assert record.log_bytes == len(total)
    assert sum(path.stat().st_size for path in segments) <= 32768
    starts = [int(path.name.removeprefix("log.")) for path in segments]
    assert all(path.stat().st_size == 8192 for path in segments[:-1])
    assert starts == list(range(starts[0], record.log_bytes, 8192))
    assert jobs.log() == total[starts[0] :]


async def test_a_job_survives_agent_and_spawner(jobs: Jobs, node: Any, restart_spawner: Any, state_dir: Path) -> None:
    """SIGKILL of both: the job goes on, loses no output, and its end is on disk."""
    gate = state_dir / "gate"
    os.mkfifo(gate)
    spawned = await jobs.start(sh(f"echo before; read x < {gate}; echo after; exit 9"))
    client, _ = await jobs.attach()
    client.close()
    await restart_spawner(node)
    assert jobs.record().state is JobState.RUNNING
    again, _ = await jobs.attach()
    gate.write_text("go\n")
    await wait_fd(spawned.pidfd, timeout_s=20)
    again.close()
    assert (jobs.record().state, jobs.record().exit_code) == (JobState.ENDED, 9)
    assert jobs.log() == b"before\nafter\n"
    assert not (node.config.state_dir / "j" / "job.sock").exists()


async def test_a_stop_asks_first_and_then_kills(jobs: Jobs) -> None:
    """A trainer gets its grace period to write a checkpoint."""
    spawned = await jobs.start(sh("trap 'echo saving; exit 0' TERM; echo up; while :; do sleep 0.01; done"))
    client, events = await jobs.attach()
    while not isinstance(await asyncio.wait_for(events.get(), 20), LogGrew):
        pass
    await client.stop(20, "asked by test")
    await wait_fd(spawned.pidfd, timeout_s=20)
    client.close()
    record = jobs.record()
    assert (record.cause, record.exit_code, record.detail) == (JobCause.STOPPED, 0, "asked by test")
    assert jobs.log().startswith(b"up\n")
    assert jobs.log().endswith(b"saving\n")


async def test_a_job_that_ignores_sigterm_is_killed_after_the_grace(jobs: Jobs) -> None:
    """Neither a trap nor a daemon in a session of its own outlives the grace period."""
    script = "trap '' TERM; setsid sh -c 'trap \"\" TERM; echo $$; sleep 1000' & sleep 1000; sleep 1000"
    spawned = await jobs.start(sh(script))
    client, events = await jobs.attach()
    while not isinstance(await asyncio.wait_for(events.get(), 20), LogGrew):
        pass
    daemon = int(jobs.log())
    began = time.monotonic()
    await client.stop(0.3)
    await wait_fd(spawned.pidfd, timeout_s=20)
    client.close()
    assert 0.25 < time.monotonic() - began < 5
    assert jobs.record().exit_code == 128 + signal.SIGKILL
    assert not Path(f"/proc/{daemon}").exists()


async def test_grandchildren_that_hold_the_pipe_do_not_hold_the_job(jobs: Jobs) -> None:
    """`server &` at the end of a run script: the job ends with its leader, and the server with the job."""
    began = time.monotonic()
    record = await jobs.run(sh("(sleep 1000; echo never) & echo $!"))
    assert record.cause is JobCause.EXITED
    assert time.monotonic() - began < 10
    assert not Path(f"/proc/{int(jobs.log())}").exists()


async def test_background_work_of_setup_lives_through_run(jobs: Jobs, node: Any) -> None:
    """`ray start` in setup must still be there in run, and gone after it."""
    log = node.config.state_dir / "j" / "job" / f"log.{0:016d}"
    record = await jobs.run(sh("sleep 1000 & echo $!", f"until [ -s {log} ]; do :; done; kill -0 $(cat {log})"))
    assert record.exit_code == 0
    assert not Path(f"/proc/{int(jobs.log())}").exists()


@pytest.mark.parametrize("whose", ["step", "job"])
async def test_a_deadline_ends_the_job(jobs: Jobs, whose: str) -> None:
    """A hung job gives its GPUs back."""
    steps = (Step("run", ("sleep", "1000"), timeout_s=0.2 if whose == "step" else 0),)
    record = await jobs.run(sh(steps=steps, timeout_s=0.2 if whose == "job" else 0))
    assert (record.cause, record.exit_code) == (JobCause.TIMEOUT, 128 + signal.SIGTERM)
    assert whose in record.detail


async def test_the_spawner_can_kill_a_job_at_once(jobs: Jobs, node: Any) -> None:
    """An operator's kill waits for no grace."""
    spawned = await jobs.start(sh("trap '' TERM; sleep 1000"))
    await node.client.kill("job")
    await wait_fd(spawned.pidfd, timeout_s=20)
    assert jobs.record().cause is JobCause.STOPPED


async def test_a_killed_supervisor_takes_its_processes_with_it(jobs: Jobs, node: Any, until: Any) -> None:
    """The supervisor dies of the OOM killer: its job must not run on unseen."""
    spawned = await jobs.start(sh("echo $$; sleep 1000 & sleep 1000"))
    await until(jobs.log, "the first line")
    leader = int(jobs.log())
    os.kill(spawned.pid, signal.SIGKILL)
    await until(lambda: not Path(f"/proc/{leader}").exists(), "the leader is gone")
    await until(lambda: [child.id for child in node.ended] == ["job"], "the spawner tells the end")
    assert jobs.record().state is JobState.RUNNING  # its reader judges: the supervisor is gone, so it is lost


async def test_a_job_runs_as_its_user(root_node: Any) -> None:
    """On a root install jobs never run as root."""
    jobs = Jobs(root_node)
    uid = 61234
    record = await jobs.run(sh("id -u; id -g; id -G; grep CapEff /proc/self/status", user=JobUser(uid, uid)))
    jobs.close()
    assert record.exit_code == 0
    assert jobs.log() == f"{uid}\n{uid}\n{uid}\nCapEff:\t0000000000000000\n".encode()


async def test_users_outside_the_ceiling_are_refused(root_node: Any) -> None:
    """A coordinator's message must not run a job as the database's user."""
    for user in (JobUser(1, 61234), JobUser(61234, 1), JobUser(61234, 61234, (61234, 27))):
        with pytest.raises(PermissionError):
            await root_node.client.spawn_job("job", sh("true", user=user))
    assert not (root_node.config.state_dir / "j" / "job").exists()


async def test_a_job_id_is_never_used_twice(jobs: Jobs) -> None:
    """At most once: a repeated start must not run the job again."""
    await jobs.run(sh("true"))
    with pytest.raises(FileExistsError):
        await jobs.start(sh("true"))


async def test_secrets_of_a_job_are_in_no_file_and_no_argument(jobs: Jobs, node: Any) -> None:
    """The environment goes through memory only."""
    await jobs.run(sh('test -n "$TOKEN"', env={**ENV, "TOKEN": "s3cr3t-value"}))
    assert jobs.record().exit_code == 0
    for path in node.config.state_dir.rglob("*"):
        if path.is_file():
            assert b"s3cr3t-value" not in path.read_bytes()
