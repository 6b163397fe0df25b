"""Job attempts on this node: starts and stops them, keeps each to its fence, and tells every end until it is heard.

The order for a start is fixed: reserve the fence, count the resources, journal with fsync, answer, start. Whatever
crashes in between, an attempt is started at most once, and one that may have been started is never started again.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Protocol, final

from kernpool_agent import records
from kernpool_agent.capacity import Capacity, attempt_need
from kernpool_agent.errors import AgentError, DiskFullError, RefusedError
from kernpool_agent.fences import Attempt, Fences, Offer, Phase
from kernpool_agent.jobs.errors import JobError
from kernpool_agent.jobs.names import name_of
from kernpool_agent.journal import Journal
from kernpool_agent.reconcile import Adopt, End, GoOn, Instruction, Stop, ended_of, key_of, reconcile, status_of
from kernpool_agent.records import Accepted, Acked, AttemptKey, Ended, Forgotten
from kernpool_agent.uplink import Uplink
from kernpool_mesh.messages import (
    AckAttempts,
    AttemptState,
    AttemptStatus,
    AttemptUpdate,
    ForgetJobs,
    Reply,
    StartAttempt,
    StopAttempt,
)
from kernpool_mesh.reasons import EndReason

log = logging.getLogger(__name__)

SUPERSEDED_GRACE_S = 10.0
SUPERSEDED_WAIT_S = 20.0
"""An older attempt of the same rank must be gone within this, or the newer one is answered `busy`."""
END_ALL_GRACE_S = 5.0
"""Between SIGTERM and SIGKILL when all work of the node is ended."""
END_ALL_EXTRA_S = 10.0
"""For the kernel, after the last SIGKILL."""
REPEATED_MAX = 200
"""Ends told again in one round: the rest waits for the acknowledgement of these."""


class AttemptRunner(Protocol):
    """What runs attempts: `kernpool_agent.jobs.JobRuntime`."""

    async def start(self, spec: StartAttempt) -> None:
        """Start it; raises JobStartError when nothing was started."""
        ...

    async def stop(self, job_id: str, index: int, fence: int, reason: EndReason, grace_s: float) -> None:
        """Begin to end it; the end comes as an update. Raises JobNotFoundError."""
        ...

    def statuses(self) -> list[AttemptStatus]:
        """Return all that run and all ended ones that are not forgotten."""
        ...

    def forget(self, job_ids: list[str]) -> None:
        """Remove logs and records of ended attempts."""
        ...


@final
class Attempts:
    """The node's attempts. Feed it the coordinator's messages and the runner's updates."""

    def __init__(
        self,
        *,
        fences: Fences,
        journal: Journal,
        capacity: Capacity,
        uplink: Uplink,
        ended_max: int,
        now_unix_s: Callable[[], float] = time.time,
    ) -> None:
        self._fences = fences
        self._journal = journal
        self._capacity = capacity
        self._uplink = uplink
        self._ended_max = ended_max
        self._now_unix_s = now_unix_s
        self._runner: AttemptRunner | None = None
        self._starting: dict[AttemptKey, asyncio.Task[Reply]] = {}
        """Starts under way, from the offer to the answer; a repeated StartAttempt waits for the same one."""
        self._latest: dict[AttemptKey, AttemptStatus] = {}
        """What the runner last said of each attempt that is not over."""
        self._over: dict[AttemptKey, asyncio.Event] = {}
        """Set when the attempt has ended; only for attempts somebody waits for."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.started = 0
        """Attempts handed to the runner since this agent started."""

    # --- the beginning and the end of the agent ---

    def adopt(self, runner: AttemptRunner) -> str:
        """Take over what runs and settle what does not, once at start; returns one sentence about it."""
        self._runner = runner
        instructions = reconcile(self._fences, runner.statuses(), self._now_unix_s())
        for status in runner.statuses():
            self._latest[key_of(status)] = status
        for instruction in instructions:
            self._carry_out(instruction)
        counts = [sum(isinstance(i, kind) for i in instructions) for kind in (GoOn, Adopt, End, Stop)]
        return "attempts: {} go on, {} adopted, {} found ended, {} stopped".format(*counts)

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Adopt(accepted):
                self._fences.offer(accepted)
                self._fences.commit(accepted.key)
                self._journal.note(records.encode(accepted))
                self._count(accepted)
            case GoOn(key):
                attempt = self._fences.get(key)
                assert attempt is not None
                self._count(attempt.accepted)
            case End(ended):
                self._end(ended)
            case Stop(key):
                self._spawn(self._stop_quietly(key, EndReason.LOST, SUPERSEDED_GRACE_S), f"stop {key}")

    def _count(self, accepted: Accepted) -> None:
        self._capacity.adopt(accepted.key, attempt_need(accepted.limits, accepted.gpu_indices))

    async def close(self) -> None:
        """Let starts under way come to their answer; attempts go on."""
        await asyncio.gather(*self._starting.values(), return_exceptions=True)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def end_all(self) -> None:
        """End every attempt (the person at the node asked for it) and wait until they are over."""
        await asyncio.gather(*self._starting.values(), return_exceptions=True)
        keys = [attempt.accepted.key for attempt in self._fences.in_phase(Phase.ACCEPTED)]
        over = [self._over.setdefault(key, asyncio.Event()) for key in keys]
        await asyncio.gather(*[self._stop_quietly(key, EndReason.CANCELLED, END_ALL_GRACE_S) for key in keys])
        try:
            async with asyncio.timeout(END_ALL_GRACE_S + END_ALL_EXTRA_S):
                await asyncio.gather(*[event.wait() for event in over])
        except TimeoutError:
            log.warning("%d attempts do not end", sum(not event.is_set() for event in over))

    # --- questions ---

    @property
    def running(self) -> int:
        """How many attempts may run."""
        return len(self._fences.in_phase(Phase.ACCEPTED))

    def statuses(self) -> list[AttemptStatus]:
        """Return what a snapshot tells: all that may run and all ends that are not acknowledged."""
        live = [self._live_status(attempt) for attempt in self._fences.in_phase(Phase.ACCEPTED)]
        ends = [status_of(a.ended) for a in self._fences.in_phase(Phase.ENDED) if a.ended is not None]
        return live + ends

    def _live_status(self, attempt: Attempt) -> AttemptStatus:
        key = attempt.accepted.key
        return self._latest.get(key) or AttemptStatus(*key.parts, state=AttemptState.ACCEPTED)

    # --- the coordinator's messages (called in order, never waiting) ---

    def start(self, message: StartAttempt) -> None:
        """Decide on a StartAttempt and answer it, now or when its journal record is on disk."""
        key = AttemptKey(message.job_id, message.index, message.fence)
        try:
            name_of(key)
        except ValueError as error:  # before the journal: what it holds must have a name at every start
            self._uplink.tell(Reply(message.request_id, str(error), "invalid"))
            return
        accepted = Accepted(key, message.limits, tuple(message.gpu_indices), self._now_unix_s())
        match self._fences.offer(accepted):
            case Offer.START:
                task = asyncio.create_task(self._accept_and_start(message, accepted), name=f"start {key}")
                self._starting[key] = task
                task.add_done_callback(lambda done: self._start_answered(key, done))
            case Offer.DUPLICATE if key in self._starting:
                self._starting[key].add_done_callback(lambda done: self._answer_again(message.request_id, done))
            case Offer.DUPLICATE:
                self._uplink.tell(Reply(message.request_id))
            case Offer.STALE:
                highest = self._fences.highest(message.job_id, message.index)
                text = f"{key} is older than attempt {highest}, which this node has seen"
                self._uplink.tell(Reply(message.request_id, text, "stale_fence"))

    def stop(self, message: StopAttempt) -> None:
        """Begin to end an attempt; answered once the stop is under way."""
        key = AttemptKey(message.job_id, message.index, message.fence)
        self._spawn(self._stop_and_reply(key, message), f"stop {key}")

    def ack(self, message: AckAttempts) -> None:
        """Stop telling these ends."""
        for parts in message.attempts:
            key = AttemptKey(*parts)
            if self._fences.ack(key):
                self._journal.note(records.encode(Acked(key)))
        self._forget_oldest()

    def forget(self, message: ForgetJobs) -> None:
        """Drop logs and records of these ended jobs."""
        self._forget(message.job_ids)

    # --- the runner's updates ---

    def on_update(self, status: AttemptStatus) -> None:
        """Take what the runner says of an attempt, and pass it on."""
        key = key_of(status)
        attempt = self._fences.get(key)
        if attempt is None or attempt.phase is not Phase.ACCEPTED:
            if status.state is not AttemptState.ENDED and attempt is not None:
                log.warning("%s was told as over, yet it runs: it is being ended", key)
                self._carry_out(Stop(key))
            return
        self._latest[key] = status
        if status.state is AttemptState.ENDED:
            self._end(ended_of(status))
        else:
            self._uplink.tell(AttemptUpdate(status))

    async def repeat_ends(self, interval_s: float) -> None:
        """Tell ends again and again until they are acknowledged; runs for ever."""
        while True:
            await asyncio.sleep(interval_s)
            for attempt in self._fences.in_phase(Phase.ENDED)[:REPEATED_MAX]:
                if attempt.ended is not None and not self._uplink.tell(AttemptUpdate(status_of(attempt.ended))):
                    break

    # --- inside ---

    async def _accept_and_start(self, message: StartAttempt, accepted: Accepted) -> Reply:
        key = accepted.key
        try:
            await self._end_older(key)
            self._capacity.take(key, attempt_need(accepted.limits, accepted.gpu_indices))
            await self._journal.append(records.encode(accepted))
        except AgentError as error:
            self._capacity.give_back(key)
            self._fences.withdraw(key)
            log.warning("%s is refused: %s", key, error)
            return _refusal(message.request_id, error)
        self._fences.commit(key)
        self._uplink.tell(Reply(message.request_id))
        await self._start(message, key)
        return Reply(message.request_id)

    async def _start(self, message: StartAttempt, key: AttemptKey) -> None:
        assert self._runner is not None
        try:
            await self._runner.start(message)
        except JobError as error:
            log.warning("%s could not be started: %s", key, error)
            now = self._now_unix_s()
            self._end(Ended(key, EndReason.START_FAILED, detail=str(error), started_unix_s=now, ended_unix_s=now))
        else:
            self.started += 1
            log.info("%s started", key)

    async def _end_older(self, key: AttemptKey) -> None:
        """End what the coordinator has given up of the same rank: two attempts of one rank never run at once."""
        rank = (key.job_id, key.index)
        starts = [task for k, task in self._starting.items() if (k.job_id, k.index) == rank and k.fence < key.fence]
        if starts:
            await asyncio.wait(starts)
        for older in self._fences.superseded_by(key):
            log.warning("%s supersedes %s, which is being ended", key, older)
            over = self._over.setdefault(older, asyncio.Event())
            await self._stop_quietly(older, EndReason.CANCELLED, SUPERSEDED_GRACE_S)
            try:
                async with asyncio.timeout(SUPERSEDED_WAIT_S):
                    await over.wait()
            except TimeoutError:
                raise RefusedError("busy", f"{older} of the same rank is still being ended") from None

    async def _stop_and_reply(self, key: AttemptKey, message: StopAttempt) -> None:
        assert self._runner is not None
        if key in self._starting:
            await asyncio.wait([self._starting[key]])
        attempt = self._fences.get(key)
        if attempt is None:
            self._uplink.tell(Reply(message.request_id, f"{key} is not on this node", "not_found"))
            return
        try:
            if attempt.phase is Phase.ACCEPTED:
                await self._runner.stop(*key.parts, message.reason, message.grace_s)
        except JobError as error:
            self._uplink.tell(Reply(message.request_id, str(error), "not_found"))
        else:
            self._uplink.tell(Reply(message.request_id))

    async def _stop_quietly(self, key: AttemptKey, reason: EndReason, grace_s: float) -> None:
        assert self._runner is not None
        try:
            await self._runner.stop(*key.parts, reason, grace_s)
        except JobError as error:
            log.warning("%s cannot be ended: %s", key, error)

    def _end(self, ended: Ended) -> None:
        key = ended.key
        if not self._fences.end(ended):
            return
        self._journal.note(records.encode(ended))
        self._capacity.give_back(key)
        self._latest.pop(key, None)
        if key in self._over:
            self._over.pop(key).set()
        log.info("%s ended: %s, exit code %d %s", key, ended.reason, ended.exit_code, ended.detail)
        self._uplink.tell(AttemptUpdate(status_of(ended)))

    def _forget_oldest(self) -> None:
        acked = self._fences.in_phase(Phase.ACKED)
        excess = len(acked) - self._ended_max
        if excess > 0:
            oldest = sorted(acked, key=lambda a: a.ended.ended_unix_s if a.ended else 0.0)[:excess]
            self._forget({a.accepted.key.job_id for a in oldest})

    def _forget(self, job_ids: Iterable[str]) -> None:
        assert self._runner is not None
        gone = [job_id for job_id in job_ids if self._fences.forget(job_id)]
        for job_id in gone:
            self._journal.note(records.encode(Forgotten(job_id)))
        if gone:
            self._runner.forget(gone)

    def _start_answered(self, key: AttemptKey, task: "asyncio.Task[Reply]") -> None:
        del self._starting[key]
        if not task.cancelled() and task.exception() is None and task.result().code:
            self._uplink.tell(task.result())
        elif not task.cancelled() and task.exception() is not None:
            log.error("start of %s failed by a fault of the agent", key, exc_info=task.exception())

    def _answer_again(self, request_id: int, task: "asyncio.Task[Reply]") -> None:
        if not task.cancelled() and task.exception() is None:
            self._uplink.tell(Reply(request_id, task.result().error, task.result().code))

    def _spawn(self, coroutine: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _refusal(request_id: int, error: AgentError) -> Reply:
    if isinstance(error, RefusedError):
        return Reply(request_id, str(error), error.code)
    return Reply(request_id, str(error), "disk_full" if isinstance(error, DiskFullError) else "internal")
