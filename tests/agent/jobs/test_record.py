"""From a supervisor's record to an attempt's end, and what a starting agent decides about what it finds."""

from dataclasses import replace

import pytest

from kernpool_agent.errors import TransitionError
from kernpool_agent.jobs.adopt import Attach, Conclude, Found, Remove, decide
from kernpool_agent.jobs.attempt import Attempt
from kernpool_agent.jobs.names import key_of, name_of
from kernpool_agent.jobs.record import End, end_of, status_of
from kernpool_agent.records import AttemptKey
from kernpool_mesh.messages import AttemptState
from kernpool_mesh.reasons import EndReason
from kernpool_sandbox.kpinit.plan import JobCause
from kernpool_sandbox.kpinit.record import JobRecord, JobState

BOOT = "boot-1"
ENDED = JobRecord(
    state=JobState.ENDED,
    boot_id=BOOT,
    pid=7,
    step=1,
    step_name="run",
    started_unix_ms=1000,
    ended_unix_ms=2500,
    log_bytes=5,
)
RUNNING = replace(ENDED, state=JobState.RUNNING, ended_unix_ms=0)
KEY = AttemptKey("j-17", 2, 3)


def exited(code: int) -> int:
    """Returns the raw wait status."""
    return code << 8


@pytest.mark.parametrize(
    ("record", "oom_kills", "reason", "exit_code", "detail"),
    [
        (ENDED, 0, EndReason.EXITED, 0, ""),
        (replace(ENDED, status=exited(3)), 0, EndReason.EXITED, 3, "run exited with 3"),
        (replace(ENDED, status=11), 0, EndReason.KILLED, 139, "run was killed by SIGSEGV"),
        (replace(ENDED, status=exited(1), step=0, step_name="setup"), 0, EndReason.EXITED, 1, "setup exited with 1"),
        (
            replace(ENDED, status=exited(1)),
            2,
            EndReason.OOM,
            1,
            "the kernel killed 2 processes at the memory limit; run exited with 1",
        ),
        (
            replace(ENDED, status=9),
            1,
            EndReason.OOM,
            137,
            "the kernel killed 1 process at the memory limit; run was killed by SIGKILL",
        ),
        (ENDED, 1, EndReason.EXITED, 0, ""),
        (
            replace(ENDED, log_lost_bytes=9),
            0,
            EndReason.EXITED,
            0,
            "the node's disk was full: 9 bytes of output are missing in the log",
        ),
        (
            replace(ENDED, status=exited(1), log_lost_bytes=9),
            0,
            EndReason.DISK_FULL,
            1,
            "the node's disk was full: 9 bytes of output are missing in the log; run exited with 1",
        ),
        (replace(ENDED, cause=JobCause.TIMEOUT, status=9), 0, EndReason.TIMEOUT, 137, "run ran into its time limit"),
        (
            replace(ENDED, cause=JobCause.STOPPED, status=15, detail="preempted"),
            0,
            EndReason.PREEMPTED,
            143,
            "run was killed by SIGTERM",
        ),
        (
            replace(ENDED, cause=JobCause.STOPPED, status=15, detail="by hand"),
            0,
            EndReason.CANCELLED,
            143,
            "run was killed by SIGTERM",
        ),
        (
            replace(ENDED, cause=JobCause.START_FAILED, detail="chdir /home/x: No such file"),
            0,
            EndReason.START_FAILED,
            127,
            "run could not be started; chdir /home/x: No such file",
        ),
        (
            replace(ENDED, cause=JobCause.START_FAILED, detail="log: No space left on device"),
            0,
            EndReason.DISK_FULL,
            127,
            "run could not be started; log: No space left on device",
        ),
    ],
)
def test_each_end_has_its_reason(
    record: JobRecord, oom_kills: int, reason: EndReason, exit_code: int, detail: str
) -> None:
    """A person reads why a job is over, and the coordinator retries by the reason."""
    assert end_of(record, oom_kills) == End(reason, exit_code, detail)


@pytest.mark.parametrize(
    ("found", "decision"),
    [
        (Found(answers=True, record=RUNNING, oom_kills=0, accepted=True), Attach()),
        (Found(answers=True, record=None, oom_kills=0, accepted=False), Attach()),
        (Found(answers=True, record=ENDED, oom_kills=0, accepted=True), Attach()),
        (
            Found(answers=False, record=ENDED, oom_kills=0, accepted=True),
            Conclude(End(EndReason.EXITED, 0, "")),
        ),
        (
            Found(answers=False, record=ENDED, oom_kills=0, accepted=False),
            Conclude(End(EndReason.EXITED, 0, "")),
        ),
        (
            Found(answers=False, record=RUNNING, oom_kills=0, accepted=True),
            Conclude(End(EndReason.LOST, 0, "its supervisor died, so nobody saw how it ended")),
        ),
        (
            Found(answers=False, record=replace(RUNNING, boot_id="boot-0"), oom_kills=0, accepted=True),
            Conclude(End(EndReason.LOST, 0, "the node restarted while it ran")),
        ),
        (
            Found(answers=False, record=RUNNING, oom_kills=1, accepted=False),
            Conclude(
                End(EndReason.OOM, 0, "the kernel killed 1 process at the memory limit; its supervisor ended with it")
            ),
        ),
        (
            Found(answers=False, record=None, oom_kills=0, accepted=True),
            Conclude(End(EndReason.LOST, 0, "it was accepted, but nothing shows that it ever started")),
        ),
        (Found(answers=False, record=None, oom_kills=0, accepted=False), Remove()),
    ],
)
def test_a_starting_agent_decides_on_what_it_finds(found: Found, decision: object) -> None:
    """After a crash of everything, each attempt is followed, concluded or removed, never started or killed."""
    assert decide(found, BOOT) == decision


def test_the_states_follow_the_steps() -> None:
    """What `kernpool queue` shows while setup and run go on."""
    setup = replace(RUNNING, step=0, step_name="setup")
    waiting = replace(RUNNING, state=JobState.STARTING, step=-1, step_name="", started_unix_ms=0)
    states = [status_of(KEY, record, 0).state for record in (None, waiting, setup, RUNNING)]
    assert states == [AttemptState.ACCEPTED, AttemptState.ACCEPTED, AttemptState.SETTING_UP, AttemptState.RUNNING]
    over = status_of(KEY, ENDED, 5, End(EndReason.EXITED, 0, ""))
    assert (over.state, over.started_unix_s, over.ended_unix_s, over.log_bytes) == (AttemptState.ENDED, 1.0, 2.5, 5)


def test_an_attempt_takes_each_step_once_and_none_back(tmp_path: object) -> None:
    """Hints come doubled and late; a state is told once, and an illegal one is a bug told with its history."""
    from pathlib import Path

    attempt = Attempt(KEY, name_of(KEY), Path("/nowhere"))
    setup = replace(RUNNING, step=0, step_name="setup")
    assert attempt.record_read(setup)
    assert not attempt.record_read(setup)
    assert attempt.record_read(RUNNING)
    with pytest.raises(TransitionError, match="setting_up after accepted, setting_up, running"):
        attempt.record_read(setup)
    assert attempt.concluded(ENDED, End(EndReason.EXITED, 0, ""), 5)
    assert not attempt.concluded(ENDED, End(EndReason.LOST, 0, ""), 5)
    assert attempt.snapshot().reason is EndReason.EXITED


def test_a_name_and_its_attempt_are_one() -> None:
    """Directory, socket and cgroup tell whose they are after everything else is lost."""
    assert key_of(name_of(KEY)) == KEY
    assert [key_of(name) for name in ("sb-1", "j-1.2", "j-1.2.x", "../j-1.0.1", "", "j-1.0.1.sock")] == [None] * 6
    with pytest.raises(ValueError, match="cannot name"):
        name_of(AttemptKey("../x", 0, 1))
