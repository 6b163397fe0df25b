"""Seeded lives of jobs on agents in memory, with crashes, loss, delay and copies; the real books, virtual time.

Each seed draws its own faults. While they last only safety is checked; then they stop, and all must come to rest.
"""

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kernpool_coordinator.core.clock import Now
from kernpool_coordinator.jobs import rows
from kernpool_coordinator.jobs.environment import start_message
from kernpool_coordinator.jobs.instructions import Ack, Instruction, Note, Save, Start, Stop
from kernpool_coordinator.jobs.record import Attempt, Job
from kernpool_coordinator.jobs.scheduler import Scheduler
from kernpool_coordinator.jobs.states import OVER, JobState
from kernpool_coordinator.placement import Ask, FirstFit
from kernpool_coordinator.simulation.agent import SimAgent
from kernpool_mesh.messages import (
    AckAttempts,
    AttemptState,
    AttemptUpdate,
    Message,
    Reply,
    Resources,
    Snapshot,
    StartAttempt,
    StopAttempt,
)
from kernpool_mesh.reasons import EndReason

REPLY_TIMEOUT_S = 5.0
LOST_AFTER_S = 40.0
FAULTS_UNTIL_S = 120.0
REST_S = 1000.0
END_S = 1500.0


class Link:
    """An ordered connection of one agent to one life of the coordinator; breakable, and worse: lossy if told so."""

    def __init__(self, world: "World", agent: SimAgent) -> None:
        self.world, self.agent, self.open, self.synced = world, agent, True, False
        self.clear_at = {"down": 0.0, "up": 0.0}

    def carry(self, direction: str, deliver: Callable[[], None]) -> None:
        world = self.world
        if world.faults and world.rng.random() < world.loss:
            return
        for _ in range(2 if world.faults and world.rng.random() < world.copies else 1):
            at = max(self.clear_at[direction], world.t + world.rng.random() * world.delay_s)
            self.clear_at[direction] = at
            world.at(at, lambda: deliver() if self.open else None)


class World:
    """One coordinator with its disk, some agents, and the faults between them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        rng = self.rng
        self.t, self.events, self.order = 0.0, [], itertools.count()
        self.faults = True
        self.loss, self.copies = rng.choice([0, 0, 0.02, 0.1]), rng.choice([0, 0.05, 0.2])
        self.delay_s = rng.choice([0.01, 0.5, 3.0])
        self.commit_s = rng.choice([0.001, 0.2])
        self.cut_every_s = rng.choice([1e9, 20.0, 5.0])
        self.crash_every_s = rng.choice([1e9, 30.0, 10.0])
        self.agents = [
            SimAgent(f"n-{number}", total=Resources(4000, 8192, 1000), runs_at_once=rng.random() < 0.5)
            for number in range(rng.randint(1, 4))
        ]
        self.links: dict[str, Link] = {}
        self.away_since: dict[str, float] = {agent.node_id: 0.0 for agent in self.agents}
        self.disk_jobs: dict[int, dict[str, Any]] = {}
        self.disk_attempts: dict[tuple[int, int, int], dict[str, Any]] = {}
        self.ends_told: Counter[str] = Counter()
        self.life = 0
        self.submitted: list[int] = []
        self.start_coordinator()

    events: list[tuple[float, int, Callable[[], None]]]

    # --- time ---

    def at(self, t: float, do: Callable[[], None]) -> None:
        heapq.heappush(self.events, (t, next(self.order), do))

    def run_until(self, end: float) -> None:
        while self.events and self.events[0][0] <= end:
            self.t, _, do = heapq.heappop(self.events)
            do()
            self.check_safety()
        self.t = end

    def every(self, period: float, do: Callable[[], None]) -> None:
        def again() -> None:
            if self.faults:
                do()
                self.at(self.t + self.rng.expovariate(1 / period), again)

        if period < 1e8:
            self.at(self.rng.expovariate(1 / period), again)

    @property
    def now(self) -> Now:
        return Now(self.t, self.t + 1e9)

    # --- the coordinator ---

    def start_coordinator(self) -> None:
        """From nothing but the disk."""
        self.life += 1
        self.scheduler = Scheduler(FirstFit(), self.rng.random)
        self.requests: dict[int, Callable[[str, str], None]] = {}
        self.request_ids = itertools.count(self.life * 1_000_000)
        self.commits_until = self.t
        for agent in self.agents:
            self.scheduler.room(agent.node_id, agent.node_id)
            self.scheduler.set_inventory(agent.node_id, agent.total, [])
        for row in self.disk_jobs.values():
            if row["state"] not in OVER:
                self.scheduler.restore_job(self.read_job(row))
        self.scheduler.jobs.next_number = max(self.disk_jobs, default=0) + 1
        self.tick(self.life)

    def read_job(self, row: dict[str, Any]) -> Job:
        job = rows._job(row)  # type: ignore[arg-type]  # a row as the store gives it
        for key, attempt in self.disk_attempts.items():
            if key[0] == job.number and key[2] == job.fence:
                job.attempts[key[1]] = rows._attempt(attempt)  # type: ignore[arg-type]
        return job

    def tick(self, life: int) -> None:
        if life != self.life:
            return
        self.do(self.scheduler.tick(self.now))
        for node_id, since in list(self.away_since.items()):
            if self.t - since >= LOST_AFTER_S:
                self.away_since[node_id] = self.t  # told once for each absence, more or less
                self.do(self.scheduler.node_lost(node_id, "gone for long", self.now))
        self.at(self.t + 1.0, lambda: self.tick(life))

    def submit(self, task_nodes: int) -> None:
        job = Job(
            self.scheduler.jobs.next_number, "default", "ann", "job", "", task_nodes, 0,
            (Ask(cpu_millis=self.rng.choice([0, 1000, 3000])),), '{"run": "x"}', 0.0, durable=True,
        )  # fmt: skip
        self.submitted.append(job.number)
        self.do(self.scheduler.submit(job, "ann", self.now))

    def do(self, instructions: Sequence[Instruction]) -> None:
        """As JobDesk: rows first, then the rest; a crash between the two loses both or the rest."""
        saved = [(one.job, one.attempts) for one in instructions if isinstance(one, Save)]
        jobs = {job.number: rows.job_row(job) for job, _ in saved}
        attempts = {
            (job.number, one.index, one.fence): rows.attempt_row(job, one) for job, changed in saved for one in changed
        }
        notes = [one for one in instructions if isinstance(one, Note) and one.verb in OVER]
        life = self.life

        def committed() -> None:
            if life != self.life:
                return
            for number, row in jobs.items():
                before = self.disk_jobs.get(number)
                assert before is None or before["state"] not in OVER or before["state"] == row["state"]
                self.disk_jobs[number] = row
            self.disk_attempts.update(attempts)
            self.ends_told.update(note.job.id for note in notes)
            for one in instructions:
                self.perform(one)

        self.commits_until = max(self.commits_until, self.t + self.rng.random() * self.commit_s)
        self.at(self.commits_until, committed)

    def perform(self, one: Instruction) -> None:
        match one:
            case Start(job=job, attempt=attempt):
                if job.attempts.get(attempt.index) is attempt and attempt.phase == "assigned" and not attempt.stopping:
                    self.send_start(job, attempt)
            case Stop():
                key = (one.job_id, one.index, one.fence)
                self.request(
                    one.node_id,
                    lambda number: StopAttempt(number, *key, one.reason),
                    lambda code, error: self.settle(self.scheduler.jobs.stop_answered(one, code, error, self.now)),
                )
            case Ack():
                link = self.links.get(one.node_id)
                if link is not None:
                    self.to_agent(link, AckAttempts([(one.job_id, one.index, one.fence)]))
            case _:
                pass

    def send_start(self, job: Job, attempt: Attempt) -> None:
        key = (job.id, attempt.index, attempt.fence)
        sent = self.request(
            attempt.node_id,
            lambda number: start_message(number, job, attempt, {}, lambda _: "10.0.0.1"),
            lambda code, error: self.settle(self.scheduler.jobs.start_answered(key, code, error, self.now)),
        )
        if sent:
            attempt.sent = True
            attempt.sends += 1

    def request(self, node_id: str, make: Callable[[int], Message], answered: Callable[[str, str], None]) -> bool:
        link = self.links.get(node_id)
        if link is None or not link.synced:
            return False
        number = next(self.request_ids)
        self.requests[number] = answered
        self.to_agent(link, make(number))
        self.at(self.t + REPLY_TIMEOUT_S, lambda: self.answer(number, "timeout", "no answer"))
        return True

    def answer(self, number: int, code: str, error: str) -> None:
        waiting = self.requests.pop(number, None)
        if waiting is not None:
            waiting(code, error)

    def settle(self, instructions: Sequence[Instruction]) -> None:
        self.do(self.scheduler.settle(instructions, self.now))

    # --- links ---

    def to_agent(self, link: Link, message: Message) -> None:
        link.carry("down", lambda: self.agent_takes(link, message))

    def agent_takes(self, link: Link, message: Message) -> None:
        answers = link.agent.handle(message)
        if isinstance(message, StartAttempt) and link.agent.starts[message.job_id, message.index, message.fence]:
            self.plan_work(link.agent, message)
        self.agent_says(link, answers)

    def plan_work(self, agent: SimAgent, order: StartAttempt) -> None:
        def said_by(do: Callable[[], list[Message]]) -> Callable[[], None]:
            def later() -> None:
                said = do()
                link = self.links.get(agent.node_id)
                if link is not None:
                    self.agent_says(link, said)

            return later

        begin = self.rng.random() * 3
        key = (order.job_id, order.index, order.fence)
        code = self.rng.choice([0, 0, 0, 0, 1])
        reason = (
            EndReason.EXITED if self.rng.random() < 0.9 else self.rng.choice([EndReason.OOM, EndReason.START_FAILED])
        )

        def alive(do: Callable[[], list[Message]]) -> Callable[[], list[Message]]:
            return lambda: do() if agent.attempts[key].state is not AttemptState.ENDED else []

        self.at(self.t + begin, said_by(alive(lambda: agent.begin(order.job_id, order.index))))
        if self.rng.random() < 0.15:
            return  # it runs until somebody ends it
        self.at(
            self.t + begin + self.rng.random() * 20,
            said_by(alive(lambda: agent.finish(order.job_id, order.index, code, reason))),
        )

    def agent_says(self, link: Link, messages: Sequence[Message]) -> None:
        for message in messages:
            link.carry("up", lambda message=message: self.coordinator_takes(link, message))  # type: ignore[misc]

    def coordinator_takes(self, link: Link, message: Message) -> None:
        node_id = link.agent.node_id
        match message:
            case Reply():
                self.answer(message.request_id, "" if not message.error else message.code or "internal", message.error)
            case AttemptUpdate():
                self.settle(self.scheduler.jobs.reported(node_id, message.status, self.now))
            case Snapshot():
                link.synced = True
                self.look_up([status.job_id for status in message.attempts])
                self.settle(self.scheduler.jobs.node_synced(node_id, message.attempts, self.now))
                self.scheduler.set_open(node_id, is_open=True)
                self.settle([])
            case _:
                pass

    def look_up(self, job_ids: Sequence[str]) -> None:
        """As JobService: what is not in memory is looked for on the disk."""
        for number in {int(job_id[2:]) for job_id in job_ids} - set(self.scheduler.jobs.jobs):
            if number in self.disk_jobs:
                self.scheduler.jobs.restore(self.read_job(self.disk_jobs[number]))

    def connect(self, agent: SimAgent) -> None:
        if agent.node_id in self.links:
            return
        self.away_since.pop(agent.node_id, None)
        link = self.links[agent.node_id] = Link(self, agent)
        # The greeting itself is not lossy: a lost part of it is a broken link.
        at = link.clear_at["up"] = self.t + self.rng.random() * self.delay_s
        snapshot = agent.snapshot()
        self.at(at, lambda: self.coordinator_takes(link, snapshot) if link.open else None)
        self.at(self.t + 5, lambda: self.repeat_ends(link))

    def repeat_ends(self, link: Link) -> None:
        if link.open:
            self.agent_says(link, link.agent.repeat_ends())
            self.at(self.t + 5, lambda: self.repeat_ends(link))

    def cut(self, agent: SimAgent) -> None:
        link = self.links.pop(agent.node_id, None)
        if link is None:
            return
        link.open = False
        self.away_since[agent.node_id] = self.t
        self.scheduler.set_open(agent.node_id, is_open=False)
        self.settle(self.scheduler.jobs.node_unreachable(agent.node_id, self.now))
        back = self.rng.choice([0.1, 2.0, 10.0, 60.0])
        self.at(self.t + back, lambda: self.connect(agent))

    # --- faults ---

    def crash_coordinator(self) -> None:
        for agent in self.agents:
            self.cut(agent)
        self.start_coordinator()

    def crash_agent(self) -> None:
        agent = self.rng.choice(self.agents)
        self.cut(agent)
        agent.restart()

    def cancel_one(self) -> None:
        jobs = [job for job in self.scheduler.jobs.jobs.values() if not job.over]
        if jobs:
            self.settle(self.scheduler.jobs.cancel(self.rng.choice(jobs), "ann", "", self.now))

    def cancel_all(self) -> None:
        for job in list(self.scheduler.jobs.jobs.values()):
            if not job.over:
                self.settle(self.scheduler.jobs.cancel(job, "ann", "the end", self.now))

    # --- truth ---

    def check_safety(self) -> None:
        starts: Counter[tuple[str, int, int]] = Counter()
        for agent in self.agents:
            starts.update(agent.starts)
        assert all(number == 1 for number in starts.values()), f"started more than once: {starts.most_common(3)}"
        assert all(number == 1 for number in self.ends_told.values()), self.ends_told.most_common(3)
        for room in self.scheduler.rooms.values():
            assert room.free().cpu_millis >= 0 or any(job.adopted for job in self.scheduler.jobs.jobs.values())

    def check_rest(self) -> None:
        unfinished = {n: row["state"] for n, row in self.disk_jobs.items() if row["state"] not in OVER}
        assert unfinished == {}, [job.history for job in self.scheduler.jobs.jobs.values() if not job.over]
        for agent in self.agents:
            live = [status for status in agent.attempts.values() if status.state is not AttemptState.ENDED]
            assert live == [], f"{agent.node_id} still runs {live}"
            assert agent.repeat_ends() == [], f"{agent.node_id} still tells of ends"
        assert all(not room.holders for room in self.scheduler.rooms.values())
        assert all(self.ends_told[f"j-{number}"] == 1 for number in self.disk_jobs)
        for number, row in self.disk_jobs.items():
            if row["state"] == JobState.SUCCEEDED:
                self.check_success(number, row)

    def check_success(self, number: int, row: dict[str, Any]) -> None:
        """A job that is called succeeded did run to its good end, on every rank of its last try."""
        for rank in range(row["num_nodes"]):
            ends = [agent.attempts.get((f"j-{number}", rank, row["fence"])) for agent in self.agents]
            assert any(end is not None and end.reason is EndReason.EXITED and end.exit_code == 0 for end in ends)


def live_through(seed: int) -> World:
    world = World(seed)
    for agent in world.agents:
        world.connect(agent)
    for _ in range(world.rng.randint(1, 12)):
        nodes = world.rng.randint(1, len(world.agents))
        world.at(world.rng.random() * 60, lambda nodes=nodes: world.submit(nodes))  # type: ignore[misc]
    world.every(world.cut_every_s, lambda: world.cut(world.rng.choice(world.agents)))
    world.every(world.crash_every_s * 2, world.crash_coordinator)
    world.every(world.crash_every_s * 2, world.crash_agent)
    world.every(40.0, world.cancel_one)
    world.run_until(FAULTS_UNTIL_S)
    world.faults = False
    world.run_until(REST_S)
    world.cancel_all()
    world.run_until(END_S)
    return world


@pytest.mark.parametrize("seed", range(60))
def test_jobs_start_once_and_come_to_rest(seed: int) -> None:
    """Agents, coordinator and links die at any moment: nothing starts twice, and everything ends and is told once."""
    live_through(seed).check_rest()


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_many_more_lives() -> None:
    for seed in range(1000, 4000):
        try:
            live_through(seed).check_rest()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_the_faults_are_really_drawn() -> None:
    """A simulator that breaks nothing proves nothing."""
    worlds = [live_through(seed) for seed in range(20)]
    assert sum(world.life for world in worlds) > 40
    assert sum(agent.incarnation for world in worlds for agent in world.agents) > 60
    states = Counter(row["state"] for world in worlds for row in world.disk_jobs.values())
    assert set(states) == set(OVER)
    assert sum(row["restarts"] for world in worlds for row in world.disk_jobs.values()) > 5
