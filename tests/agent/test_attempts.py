"""Attempts against a real journal: fenced, journaled before they start, told until heard, taken over after a crash."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kernpool_agent import records
from kernpool_agent.attempts import Attempts
from kernpool_agent.capacity import Capacity
from kernpool_agent.errors import DiskFullError
from kernpool_agent.fences import Fences, Phase
from kernpool_agent.jobs.errors import JobNotFoundError, JobStartError
from kernpool_agent.journal import Journal
from kernpool_agent.uplink import Uplink
from kernpool_mesh import messages as m
from kernpool_mesh.reasons import EndReason

Key = tuple[str, int, int]


class MemoryRunner:
    """Runs attempts in memory, as kp-init would keep them while agents come and go."""

    def __init__(self) -> None:
        self.all: dict[Key, m.AttemptStatus] = {}
        self.starts: list[Key] = []
        self.stops: list[tuple[Key, EndReason]] = []
        self.forgotten: list[str] = []
        self.on_update: Any = lambda _status: None
        self.broken = ""
        self.ends_when_stopped = True

    async def start(self, spec: m.StartAttempt) -> None:
        if self.broken:
            raise JobStartError(self.broken)
        key = (spec.job_id, spec.index, spec.fence)
        self.starts.append(key)
        self.tell(key, m.AttemptState.RUNNING)

    async def stop(self, job_id: str, index: int, fence: int, reason: EndReason, grace_s: float) -> None:
        key = (job_id, index, fence)
        if key not in self.all:
            raise JobNotFoundError("no such attempt")
        self.stops.append((key, reason))
        if self.ends_when_stopped:
            self.tell(key, m.AttemptState.ENDED, reason)

    def statuses(self) -> list[m.AttemptStatus]:
        return list(self.all.values())

    def forget(self, job_ids: list[str]) -> None:
        self.forgotten += job_ids

    def tell(self, key: Key, state: m.AttemptState, reason: EndReason | None = None) -> None:
        self.all[key] = m.AttemptStatus(*key, state, reason)
        self.on_update(self.all[key])


class MemoryLink:
    """Where an Uplink's messages go."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send_nowait(self, message: m.Message) -> None:
        self.sent.append(message)

    def replies(self) -> dict[int, str]:
        return {r.request_id: r.code for r in self.sent if isinstance(r, m.Reply)}

    def updates(self) -> list[m.AttemptStatus]:
        return [u.status for u in self.sent if isinstance(u, m.AttemptUpdate)]


class Agent:
    """One life of an agent over the same disk and the same kp-init."""

    def __init__(self, path: Path, runner: MemoryRunner, *, ended_max: int = 100) -> None:
        self.fences = Fences()
        self.journal, payloads = Journal.open(path, lambda: map(records.encode, self.fences.snapshot()))
        self.fences.restore(r for p in payloads if (r := records.decode(p)) is not None)
        self.runner = runner
        self.link = MemoryLink()
        uplink = Uplink()
        uplink.attach(self.link)  # type: ignore[arg-type]
        self.capacity = Capacity(m.Resources(4000, 4000, 4000, 2), [0, 1])
        self.attempts = Attempts(
            fences=self.fences,
            journal=self.journal,
            capacity=self.capacity,
            uplink=uplink,
            ended_max=ended_max,
            now_unix_s=lambda: 1000.0,
        )
        runner.on_update = self.attempts.on_update
        self.sentence = self.attempts.adopt(runner)

    async def start(self, fence: int, request_id: int, **changes: Any) -> str:
        self.attempts.start(spec(fence, request_id, **changes))
        await self.settle()
        return self.link.replies().get(request_id, "no answer")

    async def settle(self) -> None:
        """Wait until nothing is under way."""
        while tasks := [*self.attempts._starting.values(), *self.attempts._tasks]:
            await asyncio.wait(tasks)
        await asyncio.sleep(0)

    async def die(self) -> None:
        """Stop; the disk and the runner stay."""
        self.runner.on_update = lambda _status: None
        await self.attempts.close()
        await self.journal.close()


def spec(fence: int, request_id: int, **changes: Any) -> m.StartAttempt:
    known: dict[str, Any] = {"job_id": "j-1", "index": 0, "limits": m.Limits(1000, 1000)} | changes
    return m.StartAttempt(request_id, fence=fence, name="train", setup="", run="sleep 9", env={}, **known)


@pytest.fixture
def runner() -> MemoryRunner:
    return MemoryRunner()


async def test_an_attempt_is_on_disk_before_it_starts_and_answered(tmp_path: Path, runner: MemoryRunner) -> None:
    """The ordinary start."""
    agent = Agent(tmp_path / "journal", runner)
    seen_at_start: list[bytes] = []
    start = runner.start

    async def looking(spec: m.StartAttempt) -> None:
        seen_at_start.append((tmp_path / "journal").read_bytes())
        await start(spec)

    runner.start = looking  # type: ignore[method-assign]
    assert await agent.start(1, 10) == ""
    assert b"j-1" in seen_at_start[0]
    assert runner.starts == [("j-1", 0, 1)]
    assert agent.capacity.free().cpu_millis == 3000
    await agent.die()


async def test_a_repeated_start_answers_again_and_starts_nothing(tmp_path: Path, runner: MemoryRunner) -> None:
    """The link broke before the answer; both the same request in a row and one after the other."""
    agent = Agent(tmp_path / "journal", runner)
    agent.attempts.start(spec(1, 10))
    agent.attempts.start(spec(1, 11))
    await agent.settle()
    assert await agent.start(1, 12) == ""
    assert agent.link.replies() == {10: "", 11: "", 12: ""}
    assert runner.starts == [("j-1", 0, 1)]
    await agent.die()


@pytest.mark.parametrize("changes", [{"job_id": "../etc"}, {"job_id": "j" * 100}, {"index": -1}, {"job_id": ""}])
async def test_what_can_have_no_name_on_disk_is_refused_before_the_journal(
    tmp_path: Path, runner: MemoryRunner, changes: dict[str, Any]
) -> None:
    """A broken coordinator: in the journal it would stop every later start of the agent."""
    agent = Agent(tmp_path / "journal", runner)
    assert await agent.start(1, 10, **changes) == "invalid"
    assert agent.journal.records_written == 0
    await agent.die()


async def test_a_stale_start_is_refused(tmp_path: Path, runner: MemoryRunner) -> None:
    """An old message from before a partition."""
    agent = Agent(tmp_path / "journal", runner)
    await agent.start(5, 10)
    assert await agent.start(4, 11) == "stale_fence"
    assert runner.starts == [("j-1", 0, 5)]
    await agent.die()


async def test_what_does_not_fit_is_refused_and_may_come_again(tmp_path: Path, runner: MemoryRunner) -> None:
    """The coordinator's picture of the node was a heartbeat old."""
    agent = Agent(tmp_path / "journal", runner)
    assert await agent.start(1, 10, limits=m.Limits(99_000)) == "no_capacity"
    assert await agent.start(1, 11, gpu_indices=[1]) == ""
    assert await agent.start(1, 12, index=1, gpu_indices=[1]) == "no_capacity"
    assert await agent.start(1, 13, index=1, gpu_indices=[0]) == ""
    await agent.die()


async def test_a_full_disk_refuses_and_nothing_starts(
    tmp_path: Path, runner: MemoryRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt that a crash would forget must not run."""
    agent = Agent(tmp_path / "journal", runner)

    def full(*_: object) -> None:
        raise DiskFullError("the disk is full")

    monkeypatch.setattr(agent.journal, "_write", full)
    assert await agent.start(1, 10) == "disk_full"
    assert runner.starts == []
    assert agent.capacity.free().cpu_millis == 4000
    monkeypatch.undo()
    assert await agent.start(1, 11) == ""
    assert runner.starts == [("j-1", 0, 1)]
    await agent.die()


async def test_an_attempt_that_cannot_start_ends_as_such(tmp_path: Path, runner: MemoryRunner) -> None:
    """No bash on the node, a cgroup that cannot be made: accepted, then told as start_failed."""
    agent = Agent(tmp_path / "journal", runner)
    runner.broken = "this node has no bash"
    assert await agent.start(1, 10) == ""
    (told,) = agent.link.updates()
    assert (told.state, told.reason, told.detail) == ("ended", EndReason.START_FAILED, "this node has no bash")
    assert agent.capacity.free().cpu_millis == 4000
    await agent.die()


async def test_a_newer_attempt_ends_the_older_one_before_it_starts(tmp_path: Path, runner: MemoryRunner) -> None:
    """The node was unreachable, its rank was placed anew, and the new place is this very node."""
    agent = Agent(tmp_path / "journal", runner)
    await agent.start(1, 10, limits=m.Limits(4000))
    assert await agent.start(2, 11, limits=m.Limits(4000)) == ""
    assert runner.stops == [(("j-1", 0, 1), EndReason.CANCELLED)]
    assert runner.starts == [("j-1", 0, 1), ("j-1", 0, 2)]
    await agent.die()


async def test_an_older_attempt_that_does_not_die_keeps_the_newer_one_out(
    tmp_path: Path, runner: MemoryRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processes hang in the kernel: two of one rank at once would corrupt their checkpoint."""
    monkeypatch.setattr("kernpool_agent.attempts.SUPERSEDED_WAIT_S", 0.05)
    agent = Agent(tmp_path / "journal", runner)
    runner.ends_when_stopped = False
    await agent.start(1, 10)
    assert await agent.start(2, 11) == "busy"
    assert runner.starts == [("j-1", 0, 1)]
    await agent.die()


async def test_an_end_is_told_until_it_is_acknowledged(tmp_path: Path, runner: MemoryRunner, eventually: Any) -> None:
    """The coordinator crashed between our update and its commit."""
    agent = Agent(tmp_path / "journal", runner)
    await agent.start(1, 10)
    repeating = asyncio.create_task(agent.attempts.repeat_ends(0.01))
    runner.tell(("j-1", 0, 1), m.AttemptState.ENDED, EndReason.EXITED)
    await eventually(lambda: len(agent.link.updates()) >= 4)
    agent.attempts.ack(m.AckAttempts([("j-1", 0, 1)]))
    told = len(agent.link.updates())
    await asyncio.wait([repeating], timeout=0.05)
    assert len(agent.link.updates()) == told
    assert agent.attempts.statuses() == []
    repeating.cancel()
    await agent.die()


async def test_a_stop_waits_for_its_start_and_an_unknown_one_is_told(tmp_path: Path, runner: MemoryRunner) -> None:
    """Cancelled a moment after the launch; and a cancel for a job that never was here."""
    agent = Agent(tmp_path / "journal", runner)
    agent.attempts.start(spec(1, 10))
    agent.attempts.stop(m.StopAttempt(11, "j-1", 0, 1, EndReason.CANCELLED))
    agent.attempts.stop(m.StopAttempt(12, "j-9", 0, 1, EndReason.CANCELLED))
    await agent.settle()
    assert agent.link.replies() == {10: "", 11: "", 12: "not_found"}
    assert runner.stops == [(("j-1", 0, 1), EndReason.CANCELLED)]
    await agent.die()


async def test_after_a_crash_everything_is_taken_over_and_nothing_starts_again(
    tmp_path: Path, runner: MemoryRunner
) -> None:
    """SIGKILL of the agent with running, ended and just accepted attempts."""
    first = Agent(tmp_path / "journal", runner)
    for index in range(4):
        await first.start(1, index, index=index, limits=m.Limits(100))
    await first.die()
    runner.tell(("j-1", 1, 1), m.AttemptState.ENDED, EndReason.OOM)  # while no agent listened
    del runner.all["j-1", 2, 1]  # the machine lost its record: it was accepted, and nobody knows more
    runner.tell(("j-7", 0, 3), m.AttemptState.RUNNING)  # and one that the journal does not know
    second = Agent(tmp_path / "journal", runner)
    assert second.sentence == "attempts: 2 go on, 1 adopted, 2 found ended, 0 stopped"
    told = {(s.job_id, s.index): (s.state, s.reason) for s in second.attempts.statuses()}
    assert told == {
        ("j-1", 0): ("running", None),
        ("j-1", 3): ("running", None),
        ("j-7", 0): ("running", None),
        ("j-1", 1): ("ended", EndReason.OOM),
        ("j-1", 2): ("ended", EndReason.LOST),
    }
    assert second.capacity.free().cpu_millis == 4000 - 200
    for index in range(4):
        assert await second.start(1, 100 + index, index=index) == ""
    assert len(runner.starts) == 4, "each was started once"
    assert await second.start(3, 200, job_id="j-7") == ""
    assert len(runner.starts) == 4
    await second.die()


async def test_what_was_told_as_lost_and_lives_is_ended(tmp_path: Path, runner: MemoryRunner) -> None:
    """The spawner served a dead agent's last request after the new one had looked: nobody counts on that attempt."""
    first = Agent(tmp_path / "journal", runner)
    await first.start(1, 10)
    await first.die()
    lost = runner.all.pop(("j-1", 0, 1))
    second = Agent(tmp_path / "journal", runner)
    assert [s.reason for s in second.attempts.statuses()] == [EndReason.LOST]
    runner.all["j-1", 0, 1] = lost
    runner.on_update(lost)
    await second.settle()
    assert runner.stops == [(("j-1", 0, 1), EndReason.LOST)]
    await second.die()


async def test_forgotten_jobs_leave_and_their_fences_stay(tmp_path: Path, runner: MemoryRunner) -> None:
    """A deleted job: its logs go, and a late message of it must not start it."""
    agent = Agent(tmp_path / "journal", runner)
    await agent.start(1, 10)
    runner.tell(("j-1", 0, 1), m.AttemptState.ENDED, EndReason.EXITED)
    agent.attempts.ack(m.AckAttempts([("j-1", 0, 1)]))
    agent.attempts.forget(m.ForgetJobs(["j-1", "j-unknown"]))
    assert runner.forgotten == ["j-1"]
    del runner.all["j-1", 0, 1]
    await agent.die()
    again = Agent(tmp_path / "journal", runner)
    assert await again.start(1, 11) == "stale_fence"
    await again.die()


async def test_the_oldest_logs_go_beyond_the_bound(tmp_path: Path, runner: MemoryRunner) -> None:
    """A coordinator that never forgets must not fill the node's disk."""
    agent = Agent(tmp_path / "journal", runner, ended_max=2)
    for number in range(4):
        job_id = f"j-{number}"
        await agent.start(1, number, job_id=job_id, limits=m.Limits())
        runner.tell((job_id, 0, 1), m.AttemptState.ENDED, EndReason.EXITED)
        agent.attempts.ack(m.AckAttempts([(job_id, 0, 1)]))
    assert runner.forgotten == ["j-0", "j-1"]
    assert len(agent.fences.in_phase(Phase.ACKED)) == 2
    await agent.die()


async def test_ending_all_work_waits_until_it_is_over(tmp_path: Path, runner: MemoryRunner) -> None:
    """`kernpool api stop`."""
    agent = Agent(tmp_path / "journal", runner)
    for index in range(3):
        await agent.start(1, index, index=index)
    await agent.attempts.end_all()
    assert len(runner.stops) == 3
    assert agent.attempts.running == 0
    await agent.die()
