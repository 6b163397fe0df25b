"""The desk: takes the scheduler's instructions to the store, and afterwards to nodes and to those that wait.

The scheduler decides, this shell does. Rows and events of one event are one commit; nothing is sent to a node, and no
waiter is woken, before that commit is on disk.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, assert_never, final

from kernpool_coordinator.clusters.rows import delete_cluster, put_cluster
from kernpool_coordinator.core.clock import Clock, Now
from kernpool_coordinator.errors import BusyError, CoordinatorError, StoreError, TooLargeError, UnreachableError
from kernpool_coordinator.events.commits import Commits
from kernpool_coordinator.events.log import Event, EventLog
from kernpool_coordinator.jobs.environment import GRACE_S, start_message
from kernpool_coordinator.jobs.instructions import (
    Ack,
    Changed,
    DropCluster,
    Free,
    Instruction,
    Note,
    NoteCluster,
    Save,
    SaveCluster,
    Start,
    Stop,
)
from kernpool_coordinator.jobs.record import Attempt, Job
from kernpool_coordinator.jobs.rows import put_attempt, put_job
from kernpool_coordinator.jobs.scheduler import Scheduler
from kernpool_coordinator.nodes.links import Links
from kernpool_coordinator.store import Operation, Seal
from kernpool_mesh.messages import AckAttempts, ForgetJobs, Message, StopAttempt

logger = logging.getLogger(__name__)

Effect = Start | Stop | Ack | Changed
LATER_MAX: Final = 100_000
"""Orders that wait for a node's queue to have room."""


@final
class JobDesk:
    """Does what the scheduler says."""

    def __init__(
        self,
        scheduler: Scheduler,
        commits: Commits,
        events: EventLog,
        links: Links,
        seal: Seal,
        clock: Clock,
        address_of: Callable[[str], str],
        *,
        start_deadline_s: float,
        reply_timeout_s: float,
    ) -> None:
        self.scheduler = scheduler
        self._commits = commits
        self._events = events
        self._links = links
        self._seal = seal
        self._clock = clock
        self._address_of = address_of
        self._start_deadline_s = start_deadline_s
        self._reply_timeout_s = reply_timeout_s
        self._waiters: dict[int, set[asyncio.Future[None]]] = {}
        """By job number; no empty sets."""
        self._later: deque[Start | Stop] = deque(maxlen=LATER_MAX)
        """Orders whose node had no room for them (a full queue, a fault of its own); sent again at the next tick."""
        self._held: dict[int, list[Instruction]] = {}
        """What befell a new job before its row was on disk; done once it is, dropped when it never gets there."""
        self.over: dict[str, int] = {}
        """Number of jobs by final state."""

    # --- events from elsewhere ---

    def settle(self, instructions: Sequence[Instruction]) -> None:
        """Let the scheduler react, and do all of it in the background."""
        self.do_later(self.scheduler.settle(instructions, self._clock.now()))

    async def settle_now(self, instructions: Sequence[Instruction], wait_s: float) -> None:
        """As `settle`, and wait until it is on disk, but no longer than `wait_s`."""
        written = asyncio.Event()
        self.do_later(self.scheduler.settle(instructions, self._clock.now()), written.set)
        try:
            async with asyncio.timeout(wait_s):
                await written.wait()
        except TimeoutError:
            logger.warning("the store takes no rows: answered without waiting for it")

    def tick(self, now: Now) -> None:
        """Send what found a full queue; start those whose time has come."""
        again, self._later = list(self._later), deque(maxlen=LATER_MAX)
        self._perform(again)
        self.do_later(self.scheduler.tick(now))

    # --- doing ---

    def do_later(self, instructions: Sequence[Instruction], then: Callable[[], None] | None = None) -> None:
        """Write and then perform, without waiting; `then` is called last."""
        operations, events, effects = self._sort(instructions)

        def perform() -> None:
            self._perform(effects)
            if then is not None:
                then()

        if operations or events:
            self._commits.later(operations, events, perform)
        else:
            perform()

    async def do_now(self, instructions: Sequence[Instruction], more: Sequence[Operation], fresh: Job) -> None:
        """Write a new job with all that belongs to it, then perform. Raises StoreError, BusyError: nothing is kept."""
        operations, events, effects = self._sort(instructions, fresh)
        try:
            await self._commits.now([*operations, *more], events)
        except CoordinatorError:
            self._held.pop(fresh.number, None)
            raise
        fresh.durable = True
        self._perform(effects)
        self.do_later(self._held.pop(fresh.number, []))

    def _sort(
        self, instructions: Iterable[Instruction], fresh: Job | None = None
    ) -> tuple[list[Operation], list[Event], list[Effect]]:
        """Part what is to be written from what is to be done. Rows are made now, once for each record."""
        jobs: dict[int, Job] = {}
        attempts: dict[tuple[int, int, int], tuple[Job, Attempt]] = {}
        clusters: list[Operation] = []
        events: list[Event] = []
        effects: list[Effect] = []
        for instruction in instructions:
            if self._hold(instruction, fresh):
                continue
            match instruction:
                case Save(job=job, attempts=changed):
                    jobs[job.number] = job
                    attempts |= {(job.number, one.index, one.fence): (job, one) for one in changed}
                case SaveCluster(cluster=cluster):
                    clusters.append(put_cluster(cluster))
                case DropCluster(cluster=cluster):
                    clusters.append(delete_cluster(cluster))
                case Note() | NoteCluster():
                    events.append(self._event(instruction))
                case Free():
                    raise AssertionError("the scheduler takes these")
                case Start() | Stop() | Ack() | Changed():
                    effects.append(instruction)
                case _:
                    assert_never(instruction)
        self._count_over(jobs.values())
        rows = [put_job(job) for job in jobs.values()]
        return [*clusters, *rows, *[put_attempt(*pair) for pair in attempts.values()]], events, effects

    def _hold(self, instruction: Instruction, fresh: Job | None) -> bool:
        """Keep back what is about a job whose row is not on disk yet: no node may hear of it before."""
        match instruction:
            case Save() | Note() | Start() | Changed() if not instruction.job.durable:
                if instruction.job is not fresh:
                    self._held.setdefault(instruction.job.number, []).append(instruction)
                    return True
            case _:
                pass
        return False

    def _count_over(self, jobs: Iterable[Job]) -> None:
        # A job is saved once in its final state: with the step that brought it there.
        for job in jobs:
            if job.over:
                self.over[job.state] = self.over.get(job.state, 0) + 1

    def _event(self, note: Note | NoteCluster) -> Event:
        match note:
            case Note(job=job):
                object_, workspace = f"job/{job.id}", job.workspace
            case NoteCluster(cluster=cluster):
                object_, workspace = f"cluster/{cluster.name}", cluster.workspace
        return self._events.make(note.actor, note.verb, object_, workspace, note.cause, note.data)

    def _perform(self, effects: Sequence[Effect]) -> None:
        acks: dict[str, list[tuple[str, int, int]]] = {}
        for effect in effects:
            match effect:
                case Start():
                    self._send_start(effect)
                case Stop():
                    self._send_stop(effect)
                case Ack():
                    acks.setdefault(effect.node_id, []).append((effect.job_id, effect.index, effect.fence))
                case Changed(job=job):
                    self._wake(job)
                case _:
                    assert_never(effect)
        for node_id, ends in acks.items():
            self._send_acks(node_id, ends)

    # --- to the nodes ---

    def _send_start(self, order: Start) -> None:
        job, attempt = order.job, order.attempt
        wanted = job.attempts.get(attempt.index) is attempt and attempt.phase == "assigned" and not attempt.stopping
        if not wanted:
            return  # cancelled, or taken back, while its row was being written
        key = (job.id, attempt.index, attempt.fence)
        try:
            secrets = self._seal.open(job.secrets, f"job/{job.id}") if job.secrets else {}
            self._links.send(
                attempt.node_id,
                lambda request_id: start_message(request_id, job, attempt, secrets, self._address_of),
                "StartAttempt",
                self._start_deadline_s,
                lambda code, error: self.settle(
                    self.scheduler.jobs.start_answered(key, code, error, self._clock.now())
                ),
            )
        except UnreachableError:
            return  # the node's next snapshot, or its absence, decides
        except BusyError:
            self._later.append(order)
        except (StoreError, TooLargeError) as error:
            self.settle(self.scheduler.jobs.start_answered(key, "invalid", error.message, self._clock.now()))
        else:
            attempt.sent = True
            attempt.sends += 1

    def _send_stop(self, order: Stop) -> None:
        def make(request_id: int) -> Message:
            return StopAttempt(request_id, order.job_id, order.index, order.fence, order.reason, GRACE_S)

        def answered(code: str, error: str) -> None:
            if code in ("busy", "internal"):
                self._later.append(order)  # at the next tick: at once would be a race with a node in trouble
                return
            self.settle(self.scheduler.jobs.stop_answered(order, code, error, self._clock.now()))

        try:
            self._links.send(order.node_id, make, "StopAttempt", self._reply_timeout_s, answered)
        except UnreachableError:
            return  # told again once the node's snapshot shows that it still runs
        except BusyError:
            self._later.append(order)

    def _send_acks(self, node_id: str, ends: list[tuple[str, int, int]]) -> None:
        session = self._links.get(node_id)
        if session is None:
            return  # the node repeats its ends until they are acknowledged
        try:
            session.send_nowait(AckAttempts(ends))
        except CoordinatorError:
            logger.debug("node %s takes no acknowledgement now; it will repeat its ends", node_id)

    def forget_on(self, nodes: Iterable[str], job_ids: list[str]) -> None:
        """Let nodes drop the logs of jobs that nobody can ask for any more; one that is away has its own bound."""
        for node_id in nodes:
            session = self._links.get(node_id)
            if session is None:
                continue
            try:
                session.send_nowait(ForgetJobs(job_ids))
            except CoordinatorError:
                logger.debug("node %s keeps old logs until its own bound", node_id)

    # --- waiters ---

    def _wake(self, job: Job) -> None:
        job.told_over = job.over
        for future in self._waiters.pop(job.number, ()):
            if not future.done():
                future.set_result(None)

    async def wait_change(self, job: Job, deadline: float) -> bool:
        """Wait until something about the job has changed, on disk; False when the loop's time is over first."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        waiting = self._waiters.setdefault(job.number, set())
        waiting.add(future)
        try:
            async with asyncio.timeout_at(deadline):
                await future
        except TimeoutError:
            return False
        finally:
            waiting.discard(future)
            if not waiting and self._waiters.get(job.number) is waiting:
                del self._waiters[job.number]
        return True
