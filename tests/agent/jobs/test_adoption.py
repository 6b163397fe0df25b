"""What outlives an agent: attempts are found again, followed, and concluded from what their supervisors wrote."""

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from kernpool_agent.records import AttemptKey
from kernpool_mesh.messages import AttemptState
from kernpool_mesh.reasons import EndReason
from kernpool_sandbox.kpinit.record import read_job_record

if TYPE_CHECKING:
    from tests.agent.jobs.conftest import OpenJobs

# Counts to the end of its life without losing a number; goes on when told to by a file.
COUNTING = "n=0; while [ ! -e go ]; do n=$((n+1)); echo $n; sleep 0.002; done; echo last $n"


def check_counting(log: bytes) -> None:
    lines = log.decode().splitlines()
    numbers = [int(line) for line in lines[:-1]]
    assert numbers == list(range(1, len(numbers) + 1))
    assert lines[-1] == f"last {len(numbers)}"


async def test_a_running_job_is_found_again_and_loses_no_byte(open_jobs: "OpenJobs") -> None:
    """The agent is restarted while a job prints."""
    async with open_jobs() as jobs:
        job_id = await jobs.start(COUNTING)
        await jobs.printed(job_id, b"\n5\n")
    async with open_jobs() as jobs:
        (status,) = jobs.runtime.statuses()
        assert (status.job_id, status.state) == (job_id, AttemptState.RUNNING)
        assert status.log_bytes > 0
        assert jobs.told == []
        (jobs.home / "go").touch()
        status = await jobs.ended(job_id)
        assert status.reason is EndReason.EXITED
        check_counting(jobs.log(job_id))
        assert [one.state for one in jobs.told] == [AttemptState.ENDED]


async def test_a_job_that_ended_meanwhile_tells_its_end(open_jobs: "OpenJobs") -> None:
    """It ended while no agent was there: reason, code and log are all kept."""
    async with open_jobs() as jobs:
        job_id = await jobs.start("while [ ! -e go ]; do sleep 0.01; done; echo bye; exit 4")
        await jobs.until(lambda status: status.state is AttemptState.RUNNING, job_id)
    (jobs.home / "go").touch()
    await jobs.socket_gone(f"{job_id}.0.1")
    async with open_jobs() as jobs:
        (status,) = jobs.runtime.statuses()
        assert (status.state, status.reason, status.exit_code) == (AttemptState.ENDED, EndReason.EXITED, 4)
        assert jobs.log(job_id) == b"bye\n"
        jobs.runtime.forget([job_id])
        await jobs.nothing_left()


async def test_a_stop_works_on_an_adopted_job(open_jobs: "OpenJobs") -> None:
    """Cancel after the restart."""
    async with open_jobs() as jobs:
        job_id = await jobs.start("echo up; sleep 1000")
        await jobs.printed(job_id, b"up\n")
    async with open_jobs() as jobs:
        await jobs.runtime.stop(job_id, 0, 1, EndReason.DRAINED, 1.0)
        assert (await jobs.ended(job_id)).reason is EndReason.DRAINED


AGENT = """
import asyncio, os, sys
from pathlib import Path
from kernpool_agent.ceiling import User
from kernpool_agent.jobs.runtime import JobConfig, JobRuntime
from kernpool_mesh.messages import Limits, StartAttempt
from kernpool_sandbox.cgroup_detect import detect, open_tree
from kernpool_sandbox.kpinit.spawner import SpawnerClient

async def main(state_dir, home, tag, run):
    client = await SpawnerClient.connect(state_dir / "spawner.sock")
    async def spawner():
        return client
    user = User("me", os.geteuid(), os.getegid(), (), home)
    config = JobConfig(state_dir=state_dir, user=user)
    jobs = await JobRuntime.open(config, spawner, open_tree(detect(), tag), on_update=lambda status: None)
    for n in range(1, 6):
        await jobs.start(StartAttempt(0, f"j-{n}", 0, 1, "test", "", run, {}, Limits()))
    print("started", flush=True)
    await asyncio.Event().wait()

asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]))
"""


async def test_jobs_of_an_agent_that_was_killed_go_on(open_jobs: "OpenJobs") -> None:
    """kill -9 of the agent with jobs in full flight, and of the spawner too: each is started once and none is lost."""
    async with open_jobs() as jobs:
        await jobs.spawning.connect()
        state_dir, home = jobs.state_dir, jobs.home
        tag = f"test-{os.getpid()}-{state_dir.name}"
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", AGENT, str(state_dir), str(home), tag, COUNTING,
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert agent.stdout is not None
    assert await asyncio.wait_for(agent.stdout.readline(), 20) == b"started\n"
    agent.kill()
    await jobs.kill_spawner()
    await agent.wait()
    keys = [AttemptKey(f"j-{n}", 0, 1) for n in range(1, 6)]
    async with open_jobs(accepted=keys) as jobs:
        statuses = jobs.runtime.statuses()
        assert [(status.job_id, status.state) for status in statuses] == [
            (key.job_id, AttemptState.RUNNING) for key in keys
        ]
        (jobs.home / "go").touch()
        for key in keys:
            assert (await jobs.ended(key.job_id)).reason is EndReason.EXITED
            check_counting(jobs.log(key.job_id))


async def test_a_supervisor_that_was_killed_leaves_a_lost_attempt_and_no_process(open_jobs: "OpenJobs") -> None:
    """The kernel's OOM killer of the host, or a person: nobody saw the end, so the attempt is lost, not guessed."""
    async with open_jobs() as jobs:
        if jobs.cgroups.kind == "none":
            pytest.skip("no cgroup may be made here: a dead supervisor's processes cannot be found")
        job_id = await jobs.start("echo up; (setsid sleep 1000 &); sleep 1000")
        await jobs.printed(job_id, b"up\n")
        os.kill(read_job_record(jobs.state_dir, f"{job_id}.0.1").pid, signal.SIGKILL)
        status = await jobs.ended(job_id)
        assert (status.reason, status.detail) == (
            EndReason.LOST,
            "its supervisor died, so nobody saw how it ended",
        )
        await jobs.no_cgroup_left()


async def test_a_restart_of_the_node_leaves_lost_attempts(open_jobs: "OpenJobs") -> None:
    """The record says `running` and names another boot."""
    async with open_jobs() as jobs:
        directory = jobs.state_dir / "j" / "j-9.0.1"
        directory.mkdir()
        (directory / "status").write_text("state running\nboot_id of-yesterday\npid 7\nstep 0\nstep_name run\n")
        (directory / f"log.{0:016d}").write_bytes(b"half a line")
    async with open_jobs(accepted=[AttemptKey("j-9", 0, 1)]) as jobs:
        (status,) = jobs.runtime.statuses()
        assert (status.reason, status.detail) == (EndReason.LOST, "the node restarted while it ran")
        assert (jobs.log("j-9"), status.log_bytes) == (b"half a line", 11)


async def test_an_attempt_that_never_started_is_lost_not_started(open_jobs: "OpenJobs") -> None:
    """The agent died between its journal and the spawner: the coordinator decides on a new attempt."""
    async with open_jobs(accepted=[AttemptKey("j-8", 1, 2)]) as jobs:
        (status,) = jobs.runtime.statuses()
        assert (status.job_id, status.index, status.fence, status.reason) == ("j-8", 1, 2, EndReason.LOST)
        assert "nothing shows that it ever started" in status.detail


async def test_what_nobody_knows_is_removed_or_left_alone(open_jobs: "OpenJobs") -> None:
    """An empty directory of an attempt is swept; other people's names are not ours to touch."""
    async with open_jobs() as jobs:
        for name in ("j-7.0.1", "notes"):
            (jobs.state_dir / "j" / name).mkdir()
        (jobs.state_dir / "j" / "j-6.0.1").mkdir()
        (jobs.state_dir / "j" / "j-6.0.1" / "status").write_text("garbage")
    async with open_jobs() as jobs:
        assert jobs.runtime.statuses() == []
        await jobs.nothing_left("notes")
        (jobs.state_dir / "j" / "notes").rmdir()


async def test_the_newest_agent_wins(open_jobs: "OpenJobs") -> None:
    """Two runtimes on one directory (a lock forgotten): the older one is told, and both see the end."""
    async with open_jobs() as older:
        job_id = await older.start("while [ ! -e go ]; do sleep 0.01; done; exit 6")
        async with open_jobs() as newer:
            (older.home / "go").touch()
            assert (await newer.ended(job_id)).exit_code == 6
            assert (await older.ended(job_id)).exit_code == 6


async def test_the_cgroup_of_an_attempt_that_is_over_is_swept(open_jobs: "OpenJobs") -> None:
    """The agent died between an end and its sweep."""
    async with open_jobs() as jobs:
        if jobs.cgroups.kind == "none":
            pytest.skip("no cgroup may be made here")
        jobs.cgroups.create("j-5.0.1")
    async with open_jobs() as jobs:
        await jobs.no_cgroup_left()


async def test_a_new_spawner_is_used_when_the_old_one_died(open_jobs: "OpenJobs") -> None:
    """The spawner is killed; the next job is started by a new one."""
    async with open_jobs() as jobs:
        assert (await jobs.run("exit 1")).exit_code == 1
        await jobs.kill_spawner()
        assert (await jobs.run("exit 2")).exit_code == 2
