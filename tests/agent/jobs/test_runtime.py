"""Job attempts as real process trees: what they print, how they end, and that nothing of them is left."""

import asyncio
import os
import resource
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kernpool_agent.ceiling import User
from kernpool_agent.jobs.errors import JobNotFoundError, JobStartError
from kernpool_agent.jobs.plan import job_plan
from kernpool_mesh.messages import AttemptState, Limits
from kernpool_mesh.reasons import EndReason

if TYPE_CHECKING:
    from tests.agent.jobs.conftest import Jobs, OpenJobs

NOBODY = User("nobody", 65534, 65534, (), "/")


async def test_a_job_prints_and_ends_with_its_exit_code(jobs: "Jobs") -> None:
    """The first job of a newcomer."""
    status = await jobs.run("echo hello; echo world >&2; exit 3")
    assert (status.reason, status.exit_code, status.detail) == (EndReason.EXITED, 3, "run exited with 3")
    assert jobs.log(status.job_id) == b"hello\nworld\n"
    assert status.log_bytes == 12
    assert 0 < status.started_unix_s <= status.ended_unix_s


async def test_the_states_of_a_job_with_setup_are_told_in_order(jobs: "Jobs") -> None:
    """What `kernpool queue` shows while it starts; each state is told once."""
    status = await jobs.run("echo run", setup="echo setup")
    told = [one.state for one in jobs.told]
    assert told[-1] is AttemptState.ENDED
    assert told == sorted(set(told), key=list(AttemptState).index)
    assert jobs.log(status.job_id) == b"setup\nrun\n"


async def test_a_failed_setup_ends_the_attempt_before_run(jobs: "Jobs") -> None:
    """pip could not install: `run` must not start."""
    status = await jobs.run("echo never", setup="exit 9")
    assert (status.reason, status.exit_code, status.detail) == (EndReason.EXITED, 9, "setup exited with 9")
    assert jobs.log(status.job_id) == b""


async def test_a_command_that_does_not_exist_ends_with_127(jobs: "Jobs") -> None:
    """A typing mistake in `run`."""
    status = await jobs.run("no-such-command --flag")
    assert (status.reason, status.exit_code) == (EndReason.EXITED, 127)
    assert b"run: line 1: no-such-command: command not found" in jobs.log(status.job_id)


async def test_a_command_that_is_not_executable_ends_with_126(jobs: "Jobs") -> None:
    """A script without its x bit."""
    (jobs.home / "tool").write_text("#!/bin/sh\n")
    status = await jobs.run("./tool")
    assert (status.reason, status.exit_code) == (EndReason.EXITED, 126)
    assert b"Permission denied" in jobs.log(status.job_id)


async def test_a_job_that_kills_itself_is_told_as_killed(jobs: "Jobs") -> None:
    """A segmentation fault of the program that replaced the shell."""
    status = await jobs.run("kill -SEGV $$")
    assert (status.reason, status.exit_code, status.detail) == (
        EndReason.KILLED,
        128 + signal.SIGSEGV,
        "run was killed by SIGSEGV",
    )


async def test_a_home_that_is_missing_is_a_failed_start(jobs: "Jobs", tmp_path: Path) -> None:
    """The job user's home was never made on this node: the sentence says what is missing."""
    tmp_path.rename(tmp_path.with_name("moved"))
    status = await jobs.run("true")
    assert (status.reason, status.exit_code) == (EndReason.START_FAILED, 127)
    assert "No such file or directory" in status.detail


async def test_stdin_is_empty_and_a_reader_of_it_ends(jobs: "Jobs") -> None:
    """`cat` without a file must not hang for ever."""
    status = await jobs.run("cat; echo done")
    assert jobs.log(status.job_id) == b"done\n"


async def test_a_job_that_writes_more_than_its_bound_keeps_the_newest(jobs: "Jobs") -> None:
    """A debug print in a loop must not fill the node's disk, and its last words are what people need."""
    job_id = await jobs.start("head -c 1000000000 /dev/zero | tr '\\0' x; echo; echo last words", log_bytes_max=4 << 20)
    status = await jobs.ended(job_id)
    assert status.log_bytes == 1_000_000_012
    with jobs.runtime.log(job_id, 0) as log:
        kept = log.end_offset - log.start_offset
        assert log.start_offset > 0
        assert kept <= 4 << 20
        data, end = log.read(log.tail_offset(1))
        assert (data, end) == (b"last words\n", 1_000_000_012)
    segments = (jobs.state_dir / "j" / f"{job_id}.0.1").glob("log.*")
    assert sum(segment.stat().st_size for segment in segments) == kept


async def test_grandchildren_that_hold_the_output_open_hold_nobody_up(jobs: "Jobs") -> None:
    """A daemon started in the background keeps stdout: the job ends when its leader does, and the daemon with it."""
    job_id = await jobs.start("(setsid sleep 1000 & setsid sleep 1000 &) ; echo started")
    status = await jobs.ended(job_id)
    assert status.reason is EndReason.EXITED
    assert jobs.log(job_id) == b"started\n"
    assert jobs.cgroups.pids(f"{job_id}.0.1") == []


async def test_a_stop_gives_the_job_its_grace_to_end_well(jobs: "Jobs") -> None:
    """Training writes its checkpoint on SIGTERM."""
    job_id = await jobs.start("trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done", grace_s=30.0)
    await jobs.printed(job_id, b"up\n")
    await jobs.runtime.stop(job_id, 0, 1, EndReason.PREEMPTED, 30.0)
    status = await jobs.ended(job_id)
    assert (status.reason, status.exit_code) == (EndReason.PREEMPTED, 0)
    assert jobs.log(job_id).endswith(b"saved\n")


async def test_a_job_that_ignores_sigterm_is_killed_after_the_grace(jobs: "Jobs") -> None:
    """The whole tree ignores SIGTERM, in other sessions, and forks while it is killed."""
    job_id = await jobs.start(
        "trap '' TERM; (trap '' TERM; setsid sh -c 'while :; do sleep 0.01 & sleep 0.01; done' &) ; echo up; "
        "while :; do sleep 0.05; done"
    )
    await jobs.printed(job_id, b"up\n")
    await jobs.runtime.stop(job_id, 0, 1, EndReason.CANCELLED, 0.2)
    status = await jobs.ended(job_id)
    assert (status.reason, status.exit_code) == (EndReason.CANCELLED, 137)
    assert jobs.cgroups.pids(f"{job_id}.0.1") == []


async def test_a_second_stop_shortens_the_grace(jobs: "Jobs") -> None:
    """A person cancels, loses patience and cancels harder."""
    job_id = await jobs.start("trap '' TERM; echo up; while :; do sleep 0.05; done")
    await jobs.printed(job_id, b"up\n")
    await jobs.runtime.stop(job_id, 0, 1, EndReason.CANCELLED, 1000.0)
    await jobs.runtime.stop(job_id, 0, 1, EndReason.CANCELLED, 0.0)
    assert (await jobs.ended(job_id)).reason is EndReason.CANCELLED


async def test_a_stop_right_after_the_start_is_not_lost(jobs: "Jobs") -> None:
    """`launch` and Ctrl-C at once."""
    for _ in range(20):
        job_id = await jobs.start("sleep 1000")
        await jobs.runtime.stop(job_id, 0, 1, EndReason.CANCELLED, 0.0)
        assert (await jobs.ended(job_id)).reason is EndReason.CANCELLED


async def test_a_stop_of_what_is_over_or_unknown_says_so(jobs: "Jobs") -> None:
    """A late cancel changes nothing; one of a stranger is an error."""
    status = await jobs.run("true")
    await jobs.runtime.stop(status.job_id, 0, 1, EndReason.CANCELLED, 0.0)
    assert (await jobs.ended(status.job_id)).reason is EndReason.EXITED
    with pytest.raises(JobNotFoundError, match="not known on this node"):
        await jobs.runtime.stop("j-404", 0, 1, EndReason.CANCELLED, 0.0)


async def test_a_deadline_ends_the_whole_tree(jobs: "Jobs") -> None:
    """A job with `timeout` hangs."""
    job_id = await jobs.start("sleep 1000 & sleep 1000", timeout_s=0.2, grace_s=0.1)
    status = await jobs.ended(job_id)
    assert status.reason is EndReason.TIMEOUT
    assert jobs.cgroups.pids(f"{job_id}.0.1") == []


async def test_the_environment_is_clean_and_says_where_it_runs(jobs: "Jobs", monkeypatch: pytest.MonkeyPatch) -> None:
    """A job must see neither the agent's environment nor another one on each node."""
    monkeypatch.setenv("AGENT_SECRET", "1")
    status = await jobs.run(
        "env -0 | sort -z | tr '\\0' '\\n'; pwd",
        index=2,
        env={"KP_NUM_NODES": "4", "GREETING": "hällo wörld"},
        secret_env={"TOKEN": "s3cret"},
        gpu_indices=[1, 3],
    )
    with jobs.runtime.log(status.job_id, 2) as log:
        text = log.read(0)[0].decode()
    lines = text.splitlines()
    assert lines[-1] == str(jobs.home)
    env = dict(line.split("=", 1) for line in lines[:-1])
    assert {name: env.get(name) for name in ("KP_JOB_ID", "KP_NODE_RANK", "KP_NUM_NODES", "KP_NUM_GPUS_PER_NODE")} == {
        "KP_JOB_ID": status.job_id,
        "KP_NODE_RANK": "2",
        "KP_NUM_NODES": "4",
        "KP_NUM_GPUS_PER_NODE": "2",
    }
    assert env["SKYPILOT_NODE_RANK"] == "2"
    assert env["SKYPILOT_NUM_NODES"] == "4"
    assert (env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]) == ("1,3", "PCI_BUS_ID")
    assert (env["GREETING"], env["TOKEN"], env["HOME"]) == ("hällo wörld", "s3cret", str(jobs.home))
    assert "AGENT_SECRET" not in env
    assert not any(name.endswith("_TEXT") for name in env), "the texts of the steps are not handed on"


async def test_secrets_and_texts_are_in_no_argument_list_and_no_file(jobs: "Jobs") -> None:
    """Every user of the machine reads /proc/*/cmdline; backups read files."""
    run = "echo up; sleep 1000 # marker-in-run"
    job_id = await jobs.start(run, secret_env={"TOKEN": "marker-secret"})
    await jobs.printed(job_id, b"up\n")
    for process in Path("/proc").glob("[0-9]*"):
        try:
            cmdline = (process / "cmdline").read_bytes()
        except OSError:
            continue
        assert b"marker-secret" not in cmdline
        assert b"marker-in-run" not in cmdline
    files = [file for file in (jobs.state_dir / "j").rglob("*") if file.is_file()]
    assert files
    for file in files:
        assert b"marker-" not in file.read_bytes()
        assert file.stat().st_mode & 0o077 == 0
    await jobs.runtime.stop(job_id, 0, 1, EndReason.CANCELLED, 0.0)
    await jobs.ended(job_id)


async def test_a_task_that_names_sky_workdir_starts_there(jobs: "Jobs") -> None:
    """A file written for SkyPilot goes by `cd ~/sky_workdir`; others leave the home alone."""
    status = await jobs.run("pwd; ls ~/sky_workdir", setup="touch made")
    assert jobs.log(status.job_id).decode() == f"{jobs.home}/sky_workdir\nmade\n"
    assert await jobs.run("pwd") is not None


async def test_a_text_larger_than_an_argument_is_run_and_a_larger_one_refused(jobs: "Jobs") -> None:
    """Generated scripts are long."""
    filler = "# " + "x" * 1000 + "\n"
    status = await jobs.run(filler * 90 + "echo end")
    assert jobs.log(status.job_id) == b"end\n"
    with pytest.raises(JobStartError, match="at most 98304 are taken"):
        await jobs.start(filler * 100)
    with pytest.raises(JobStartError, match="the environment of j-3 has"):
        await jobs.start("true", env={"A": "x" * 30_000})
    with pytest.raises(JobStartError, match="neither setup nor run"):
        await jobs.start("")
    with pytest.raises(JobStartError, match="cannot be an environment variable"):
        await jobs.start("true", env={"A=B": ""})
    assert len(jobs.runtime.statuses()) == 1


async def test_the_same_attempt_is_never_started_twice(jobs: "Jobs") -> None:
    """The coordinator repeats a start."""
    job_id = await jobs.start("echo once")
    with pytest.raises(JobStartError, match="was started before"):
        await jobs.start("echo twice", job_id=job_id)
    await jobs.ended(job_id)
    assert jobs.log(job_id) == b"once\n"


async def test_a_newer_attempt_has_a_log_of_its_own(jobs: "Jobs") -> None:
    """A retry: people see the log of the newest attempt of the rank."""
    job_id = await jobs.start("echo first")
    await jobs.ended(job_id)
    await jobs.start("echo second", job_id=job_id, fence=2)
    await jobs.until(lambda status: status.fence == 2 and status.state is AttemptState.ENDED, job_id)
    assert jobs.log(job_id) == b"second\n"
    with jobs.runtime.log(job_id, 0) as log:
        assert log.fence == 2


async def test_a_memory_limit_ends_a_job_as_oom(jobs: "Jobs") -> None:
    """A batch that is too large: the reason is oom, though the shell exits with a code of its own."""
    if jobs.cgroups.kind == "none":
        pytest.skip("no cgroup may be made here: jobs have no oom reason")
    status = await jobs.run("tail /dev/zero; exit 7", limits=Limits(memory_mib=32))
    assert (status.reason, status.exit_code) == (EndReason.OOM, 7)
    assert "at the memory limit" in status.detail


async def test_a_process_limit_stops_a_fork_bomb(jobs: "Jobs") -> None:
    """It hurts itself alone, and dies of a stop."""
    if jobs.cgroups.kind == "none":
        pytest.skip("no cgroup may be made here: processes of a job are not limited")
    job_id = await jobs.start("echo up; f() { f | f & }; f; sleep 1000", limits=Limits(pids=32), grace_s=0.0)
    await jobs.printed(job_id, b"fork")
    assert len(jobs.cgroups.pids(f"{job_id}.0.1")) <= 32
    await jobs.runtime.stop(job_id, 0, 1, EndReason.CANCELLED, 0.0)
    assert (await jobs.ended(job_id)).reason is EndReason.CANCELLED


async def test_without_cgroups_memory_is_limited_for_each_process(jobs: "Jobs") -> None:
    """An ordinary user on cgroup v1."""
    spec = jobs.spec("j-1", "true", limits=Limits(memory_mib=64))
    plan = job_plan(spec, "j-1.0.1", NOBODY, cgroups=(), segment_bytes=1 << 20, rlimits=True)
    assert [(limit.resource, limit.value) for limit in plan.rlimits] == [(resource.RLIMIT_AS, 64 << 20)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs jobs as somebody else")
async def test_a_job_runs_as_its_user_and_owns_nothing_of_the_node(open_jobs: "OpenJobs") -> None:
    """On a root install a job is an ordinary user: it reads neither the agent's state nor its own record."""
    async with open_jobs(user=NOBODY) as jobs:
        status = await jobs.run(f"id -u; id -g; id -G; ls {jobs.state_dir} || echo closed")
        assert jobs.log(status.job_id).decode().splitlines()[:3] == ["65534", "65534", "65534"]
        assert jobs.log(status.job_id).endswith(b"closed\n")


async def test_fifty_jobs_at_once_all_end_and_leave_nothing(jobs: "Jobs") -> None:
    """A sweep over parameters."""
    ids = await asyncio.gather(*(jobs.start(f"echo {n}; exit {n}", job_id=f"j-{n}") for n in range(50)))
    for n, job_id in enumerate(ids):
        status = await jobs.ended(job_id)
        assert (status.exit_code, jobs.log(job_id)) == (n, b"%d\n" % n)
    jobs.runtime.forget(ids)
    assert jobs.runtime.statuses() == []
    await jobs.nothing_left()


async def test_forgetting_leaves_living_attempts_alone(jobs: "Jobs") -> None:
    """The coordinator forgets a job of which a rank still runs."""
    job_id = await jobs.start("echo up; sleep 1000")
    jobs.runtime.forget([job_id])
    await jobs.printed(job_id, b"up\n")
    await jobs.runtime.stop(job_id, 0, 1, EndReason.CANCELLED, 0.0)
    await jobs.ended(job_id)
    jobs.runtime.forget([job_id])
    with pytest.raises(JobNotFoundError):
        jobs.runtime.log(job_id, 0)
