"""The book of jobs: what happens to a job at each event. Synchronous; what is to be done comes out as instructions.

Three rules hold whatever crashes. A try has a fence that only grows, and no (rank, fence) is sent to two nodes. What a
node reports under an older fence, or after the job's end, is stopped there. What ended without a record is `lost`, and
is not started again by itself.
"""

from collections.abc import Callable, Iterable
from typing import Final, final

from kernpool_coordinator.core.clock import Now
from kernpool_coordinator.jobs.instructions import Ack, Changed, Free, Instruction, Note, Save, Start, Stop
from kernpool_coordinator.jobs.record import Attempt, Job, Outcome, Verdict, job_number
from kernpool_coordinator.jobs.retry import NEVER, RETRY, delay_before
from kernpool_coordinator.jobs.states import (
    JOB_STATE_OF_PROGRESS,
    PHASE_OF_REPORT,
    PROGRESS,
    AttemptPhase,
    JobState,
)
from kernpool_coordinator.placement import Ask, Holding, Placement
from kernpool_mesh.messages import AttemptState, AttemptStatus
from kernpool_mesh.reasons import EndReason

SENDS_MAX: Final = 4
"""StartAttempts that may stay unanswered on a live link before the node is given up for this try."""
AVOID_S: Final = 15.0
"""A node that refused a start for want of room is left alone for so long."""
FENCE_JUMP: Final = 100
"""A node that calls a fence stale knows of tries that our store has lost: jump over them."""
OVER_KEPT: Final = 1_000
"""Jobs that are over and stay in memory, for late reports and quick answers; all others are read from the store."""
_ACTIVE_ORDER: Final = (JobState.PENDING, JobState.STARTING, JobState.SETTING_UP, JobState.RUNNING)


@final
class JobBook:
    """All jobs that are not over, and the last ones that are."""

    def __init__(self, jitter: Callable[[], float]) -> None:
        self.jobs: dict[int, Job] = {}
        """By number."""
        self.pending: dict[int, Job] = {}
        """Those of them that wait for a place."""
        self._over: dict[int, None] = {}
        """Numbers of jobs that are over, oldest first."""
        self._jitter = jitter
        """A number in [0, 1)."""
        self.next_number = 1

    # --- in and out of the book ---

    def restore(self, job: Job) -> None:
        """Take a job as the store has it."""
        job.durable = True
        if job.verdict is not None:
            # Its end was decided; whether its nodes were told is not known, so they are told (again).
            for attempt in job.live_attempts():
                attempt.stopping = EndReason.CANCELLED
        self.jobs[job.number] = job
        self.next_number = max(self.next_number, job.number + 1)
        if job.over:
            self._keep_over(job)
        elif job.state is JobState.PENDING:
            self.pending[job.number] = job

    def submit(self, job: Job, actor: str) -> list[Instruction]:
        """Take a new job; it waits for its place."""
        assert job.number >= self.next_number, "job numbers only grow"
        self.next_number = job.number + 1
        self.jobs[job.number] = self.pending[job.number] = job
        job.history.append("submitted")
        return [Save(job), Note(job, "submitted", actor=actor, data={"name": job.name, "cluster": job.cluster})]

    def withdraw(self, job: Job) -> list[Instruction]:
        """Forget a job that never reached the disk: nobody saw it, nothing of it was sent."""
        for index in (self.jobs, self.pending, self._over):
            index.pop(job.number, None)
        return [Free(job, attempt) for attempt in job.attempts.values()]

    def forget(self, number: int) -> None:
        """Drop a job that is over and was removed from the store."""
        if number in self._over:
            del self._over[number], self.jobs[number]

    def get(self, job_id: str) -> Job | None:
        """Find a job that is in memory."""
        number = job_number(job_id)
        return self.jobs.get(number) if number is not None else None

    # --- placing and starting ---

    def assign(self, job: Job, placement: Placement, cause: str) -> list[Instruction]:
        """Begin a try on these nodes."""
        assert job.state is JobState.PENDING, f"{job.id} is {job.state}"
        job.fence = max(job.fence, job.fence_floor) + 1
        job.detail, job.ask = "", placement.ask
        job.attempts = {
            rank: Attempt(rank, job.fence, holding.node_id, holding) for rank, holding in enumerate(placement.holdings)
        }
        self._step(job, JobState.STARTING, cause)
        attempts = tuple(job.attempts.values())
        nodes = [attempt.node_id for attempt in attempts]
        note = Note(job, "placed", cause=cause, data={"nodes": nodes, "fence": job.fence})
        return [Save(job, attempts), note, *[Start(job, attempt) for attempt in attempts], Changed(job)]

    def start_answered(self, key: tuple[str, int, int], code: str, error: str, now: Now) -> list[Instruction]:
        """A node answered StartAttempt, or did not in time (`timeout`); "" means that it took it."""
        job, attempt = self._find(key)
        if job is None or attempt is None or attempt.phase is not AttemptPhase.ASSIGNED:
            return []
        match code:
            case "":
                attempt.phase = AttemptPhase.ACCEPTED
                return [Save(job, (attempt,)), *self._advance(job, now, "accepted")]
            case "unreachable":
                return []  # whether it arrived is told by the snapshot of the node's next link
            case "timeout" if attempt.sends < SENDS_MAX:
                return [Start(job, attempt)]
            case "timeout":
                return self._give_up(job, attempt, "did not answer", now)
            case "no_capacity" | "busy":
                return self._refused_for_now(job, attempt, error, now)
            case "stale_fence":
                job.fence_floor = attempt.fence + FENCE_JUMP
                return self._end(job, attempt, EndReason.START_FAILED, f"the node refused it: {error}", now)
            case "refused":
                return self._end(job, attempt, EndReason.POLICY, error, now)
            case _:
                return self._end(job, attempt, EndReason.START_FAILED, error, now)

    def node_unreachable(self, node_id: str, now: Now) -> list[Instruction]:
        """Take back what was never sent there; what was sent may run and waits for the node's return."""
        instructions: list[Instruction] = []
        for job, attempt in self._live_on(node_id):
            if attempt.phase is AttemptPhase.ASSIGNED and not attempt.sent and job.verdict is None:
                why = f"{node_id} went away before the start was sent"
                job.verdict = Verdict(Outcome.RETRY, EndReason.NODE_LOST, None, why)
                instructions += self._end(job, attempt, EndReason.NODE_LOST, why, now)
        return instructions

    # --- what nodes tell ---

    def reported(self, node_id: str, status: AttemptStatus, now: Now) -> list[Instruction]:
        """A node told how an attempt stands. Copies and late reports change nothing."""
        number = job_number(status.job_id)
        job = self.jobs.get(number) if number is not None else None
        if job is None:
            return self._adopt_unknown(number, node_id, status, now)
        if job.over or status.fence < job.fence:
            return self._stray(job, node_id, status)
        freed = self._adopt_try(job, status.fence) if status.fence > job.fence else []
        attempt = job.attempts.get(status.index)
        if attempt is None:
            attempt = self._adopt_rank(job, node_id, status)
        if attempt.node_id != node_id or not attempt.live:
            return [*freed, *self._stray(job, node_id, status)]
        return [*freed, *self._report(job, attempt, status, now)]

    def node_synced(self, node_id: str, statuses: Iterable[AttemptStatus], now: Now) -> list[Instruction]:
        """A node that linked anew has told all that it holds: what is missing there is sent again, or is lost."""
        instructions: list[Instruction] = []
        told = set()
        for status in statuses:
            told.add((status.job_id, status.index, status.fence))
            instructions += self.reported(node_id, status, now)
        for job, attempt in self._live_on(node_id):
            if (job.id, attempt.index, attempt.fence) in told:
                instructions += self._stop_again(job, attempt)
            else:
                instructions += self._missing(job, attempt, now)
        return instructions

    def node_lost(self, node_id: str, cause: str, now: Now) -> list[Instruction]:
        """The node is given up: its attempts are over for us, and fenced off should it return."""
        instructions: list[Instruction] = []
        for job, attempt in self._live_on(node_id):
            instructions += self._end(job, attempt, EndReason.NODE_LOST, cause, now)
        return instructions

    # --- ending on request ---

    def cancel(self, job: Job, actor: str, cause: str, now: Now) -> list[Instruction]:
        """Someone wants its end. A job that is over, or is failing already, stays what it is."""
        if job.over or (job.verdict is not None and job.verdict.outcome is not Outcome.RETRY):
            return []
        why = f"cancelled by {actor}" + (f": {cause}" if cause else "")
        job.verdict = Verdict(Outcome.CANCEL, EndReason.CANCELLED, None, why)
        note = Note(job, "cancel_asked", cause=cause, actor=actor)
        return [note, *self._advance(job, now, why)]

    def stop_answered(self, order: Stop, code: str, error: str, now: Now) -> list[Instruction]:
        """A node answered StopAttempt; when it took it, the end itself comes as a report."""
        job, attempt = self._find((order.job_id, order.index, order.fence))
        live = attempt is not None and attempt.live
        if job is not None and live and code == "not_found" and attempt is not None:
            if attempt.phase is AttemptPhase.ASSIGNED:
                return self._end(job, attempt, EndReason.CANCELLED, "it never started", now)
            return self._end(job, attempt, EndReason.LOST, "its node no longer knows it", now)
        if code == "timeout":
            # Also for one that we have closed long ago: it runs there until its node says that it does not.
            if job is not None and live:
                job.detail = f"{order.node_id} was asked to end it: {error or code}"
            return [order]
        return []

    # --- inside ---

    def _step(self, job: Job, state: JobState, cause: str) -> None:
        """Take a step and keep the index of those that wait."""
        job.step(state, cause)
        if state is JobState.PENDING:
            self.pending[job.number] = job
        else:
            self.pending.pop(job.number, None)

    def _find(self, key: tuple[str, int, int]) -> tuple[Job | None, Attempt | None]:
        job_id, index, fence = key
        job = self.get(job_id)
        attempt = job.attempts.get(index) if job is not None else None
        return (job, attempt) if attempt is not None and attempt.fence == fence else (job, None)

    def _live_on(self, node_id: str) -> list[tuple[Job, Attempt]]:
        return [
            (job, attempt)
            for job in self.jobs.values()
            if not job.over
            for attempt in job.attempts.values()
            if attempt.live and attempt.node_id == node_id
        ]

    def _report(self, job: Job, attempt: Attempt, status: AttemptStatus, now: Now) -> list[Instruction]:
        phase = PHASE_OF_REPORT[status.state]
        attempt.sent = True
        if PROGRESS[phase] <= PROGRESS[attempt.phase]:
            return []
        attempt.started_unix_s = status.started_unix_s or attempt.started_unix_s
        if phase is not AttemptPhase.ENDED:
            attempt.phase = phase
            return [Save(job, (attempt,)), *self._advance(job, now, f"rank {attempt.index} {phase}")]
        reason = status.reason or EndReason.LOST
        instructions = self._end(
            job, attempt, reason, status.detail, now, exit_code=status.exit_code, ended=status.ended_unix_s
        )
        return [*instructions, Ack(attempt.node_id, job.id, attempt.index, attempt.fence)]

    def _end(
        self,
        job: Job,
        attempt: Attempt,
        reason: EndReason,
        detail: str,
        now: Now,
        *,
        exit_code: int | None = None,
        ended: float = 0.0,
    ) -> list[Instruction]:
        attempt.phase = AttemptPhase.ENDED
        attempt.reason, attempt.detail, attempt.exit_code = reason, detail, exit_code
        attempt.ended_unix_s = ended or now.unix
        instructions: list[Instruction] = [Save(job, (attempt,)), Free(job, attempt)]
        if job.verdict is None and not attempt.good:
            job.verdict = self._judge(job, attempt)
        return [*instructions, *self._advance(job, now, f"rank {attempt.index} ended: {reason}")]

    def _judge(self, job: Job, attempt: Attempt) -> Verdict:
        """Decide what a bad end of one rank means for the job."""
        reason, code = attempt.reason or EndReason.LOST, attempt.exit_code
        detail = _how_it_ended(job, attempt)
        if reason is EndReason.CANCELLED:
            return Verdict(Outcome.CANCEL, reason, code, detail)
        if reason is EndReason.EXITED and code in job.recover_codes:
            return Verdict(Outcome.RETRY, reason, code, detail, delay_s=1.0)
        rule = RETRY.get(reason, NEVER)
        tries = job.error_tries if reason is EndReason.EXITED else rule.tries
        if job.failures >= tries:
            return Verdict(Outcome.FAIL, reason, code, detail)
        job.failures += 1
        return Verdict(Outcome.RETRY, reason, code, detail, delay_before(rule, job.failures, self._jitter()))

    def _advance(self, job: Job, now: Now, cause: str) -> list[Instruction]:
        """Bring the job's state in line with its attempts and its verdict."""
        if job.over:
            return []
        if job.verdict is not None:
            instructions = self._wind_down(job, now, cause)
            return instructions if job.live_attempts() else [*instructions, *self._conclude(job, now, cause)]
        if not job.live_attempts() and job.attempts:
            return self._conclude(job, now, cause)
        least = min((attempt.phase for attempt in job.attempts.values()), key=PROGRESS.__getitem__)
        state = JOB_STATE_OF_PROGRESS[least]
        if _ACTIVE_ORDER.index(state) <= _ACTIVE_ORDER.index(job.state):
            return [Changed(job)]
        self._step(job, state, cause)
        if job.started_unix_s is None and state is not JobState.STARTING:
            job.started_unix_s = now.unix
        return [Save(job), Changed(job)]

    def _wind_down(self, job: Job, now: Now, cause: str) -> list[Instruction]:
        """End the ranks that may still run: those never sent at once, the others by their nodes."""
        instructions: list[Instruction] = []
        for attempt in job.live_attempts():
            if attempt.phase is AttemptPhase.ASSIGNED and not attempt.sent:
                attempt.phase, attempt.reason = AttemptPhase.ENDED, EndReason.CANCELLED
                attempt.detail, attempt.ended_unix_s = "it never started", now.unix
                instructions += [Save(job, (attempt,)), Free(job, attempt)]
            elif attempt.stopping is None:
                attempt.stopping = EndReason.CANCELLED
                instructions.append(_stop(job, attempt, EndReason.CANCELLED))
        if job.live_attempts() and job.verdict is not None:
            self._step(job, JobState.CANCELLING, cause)
            job.detail = f"{job.verdict.detail}; its processes are being ended"
            instructions += [Save(job), Changed(job)]
        return instructions

    def _conclude(self, job: Job, now: Now, cause: str) -> list[Instruction]:
        """All ranks of this try have ended (or there were none)."""
        verdict = job.verdict
        if job.attempts and all(attempt.good for attempt in job.attempts.values()):
            verdict = None  # whatever was decided meanwhile: it did all its work
        elif verdict is not None and verdict.outcome is Outcome.RETRY:
            return self._try_again(job, verdict, now)
        if verdict is None:
            state, job.reason, job.exit_code, job.detail = JobState.SUCCEEDED, EndReason.EXITED, 0, ""
        else:
            state = JobState.CANCELLED if verdict.outcome is Outcome.CANCEL else JobState.FAILED
            job.reason, job.exit_code, job.detail = verdict.reason, verdict.exit_code, verdict.detail
        self._step(job, state, cause)
        job.ended_unix_s = now.unix
        self._keep_over(job)
        note = Note(job, str(state), cause=job.detail, data={"reason": str(job.reason), "exit_code": job.exit_code})
        return [Save(job), note, Changed(job)]

    def _try_again(self, job: Job, verdict: Verdict, now: Now) -> list[Instruction]:
        job.verdict = None
        job.restarts += 1
        job.not_before = now.mono + verdict.delay_s
        job.detail = f"{verdict.detail}; tried again in {verdict.delay_s:.0f} s"
        self._step(job, JobState.PENDING, verdict.detail)
        note = Note(job, "retried", cause=verdict.detail, data={"reason": str(verdict.reason), "try": job.restarts + 1})
        return [Save(job), note, Changed(job)]

    def _refused_for_now(self, job: Job, attempt: Attempt, error: str, now: Now) -> list[Instruction]:
        """The node has no room after all: its truth is its own. Not a failure of the job."""
        job.avoid[attempt.node_id] = now.mono + AVOID_S
        detail = f"{attempt.node_id} had no room: {error}"
        if job.verdict is None:
            job.verdict = Verdict(Outcome.RETRY, EndReason.START_FAILED, None, detail)
        return self._end(job, attempt, EndReason.START_FAILED, detail, now)

    def _give_up(self, job: Job, attempt: Attempt, what: str, now: Now) -> list[Instruction]:
        """Its node does not answer on a live link: try elsewhere once it confirmed that nothing runs."""
        job.avoid[attempt.node_id] = now.mono + AVOID_S
        if job.verdict is None:
            detail = f"{attempt.node_id} {what} {attempt.sends} starts"
            job.failures += 1
            again = job.failures <= RETRY[EndReason.START_FAILED].tries
            outcome = Outcome.RETRY if again else Outcome.FAIL
            job.verdict = Verdict(outcome, EndReason.START_FAILED, None, detail)
        return self._advance(job, now, what)

    def _missing(self, job: Job, attempt: Attempt, now: Now) -> list[Instruction]:
        """The node does not have it, and says all that it has."""
        if attempt.phase is not AttemptPhase.ASSIGNED:
            return self._end(job, attempt, EndReason.LOST, "its node no longer knows it", now)
        if attempt.stopping is not None:
            return self._end(job, attempt, EndReason.CANCELLED, "it never started", now)
        return [Start(job, attempt)]

    def _stop_again(self, job: Job, attempt: Attempt) -> list[Instruction]:
        return [_stop(job, attempt, attempt.stopping)] if attempt.live and attempt.stopping is not None else []

    def _stray(self, job: Job | None, node_id: str, status: AttemptStatus) -> list[Instruction]:
        """An attempt that we have closed: acknowledge its end, or end it."""
        if status.state is AttemptState.ENDED:
            return [Ack(node_id, status.job_id, status.index, status.fence)]
        replaced = job is not None and status.fence < job.fence
        reason = EndReason.NODE_LOST if replaced else EndReason.CANCELLED
        return [Stop(node_id, status.job_id, status.index, status.fence, reason)]

    # --- adoption: a node holds what our store has lost ---

    def _adopt_unknown(self, number: int | None, node_id: str, status: AttemptStatus, now: Now) -> list[Instruction]:
        """A job without a record here. The caller has looked into the store: it is pruned, or the store was lost."""
        ended = status.state is AttemptState.ENDED
        if number is None or (ended and number < self.next_number):
            return self._stray(None, node_id, status)
        job = Job(
            number, "default", "unknown", "adopted", "", status.index + 1, 0, (Ask(),), "{}", now.unix, adopted=True
        )
        job.fence, job.durable = status.fence, True
        self._step(job, JobState.STARTING, f"adopted from {node_id}")
        job.detail = f"adopted: {node_id} has it and the store had no record of it"
        self.jobs[number] = job
        self.next_number = max(self.next_number, number + 1)
        note = Note(job, "adopted", cause=job.detail)
        return [Save(job), note, *self.reported(node_id, status, now)]

    def _adopt_try(self, job: Job, fence: int) -> list[Instruction]:
        """A node has a newer try than our store: the store was set back. The newest fence is the truth."""
        job.history.append(f"fence {job.fence} -> {fence} (adopted)")
        freed: list[Instruction] = [Free(job, attempt) for attempt in job.live_attempts()]
        job.fence, job.attempts, job.adopted = fence, {}, True
        if job.state is JobState.PENDING:
            self._step(job, JobState.STARTING, "adopted")
        return freed

    def _adopt_rank(self, job: Job, node_id: str, status: AttemptStatus) -> Attempt:
        attempt = Attempt(status.index, status.fence, node_id, Holding(node_id), sent=True)
        job.num_nodes = max(job.num_nodes, status.index + 1)
        job.attempts[status.index] = attempt
        return attempt

    def _keep_over(self, job: Job) -> None:
        self._over[job.number] = None
        while len(self._over) > OVER_KEPT:
            oldest = next(iter(self._over))
            del self._over[oldest]
            self.jobs.pop(oldest, None)

    def __repr__(self) -> str:
        counts: dict[str, int] = {}
        for job in self.jobs.values():
            counts[job.state] = counts.get(job.state, 0) + 1
        return f"<JobBook {counts}>"


def _stop(job: Job, attempt: Attempt, reason: EndReason) -> Stop:
    return Stop(attempt.node_id, job.id, attempt.index, attempt.fence, reason)


def _how_it_ended(job: Job, attempt: Attempt) -> str:
    rank = f"rank {attempt.index} " if job.num_nodes > 1 else ""
    match attempt.reason:
        case EndReason.EXITED:
            text = f"{rank}exited with {attempt.exit_code}"
        case EndReason.NODE_LOST:
            text = f"{rank}was on {attempt.node_id}, which is gone"
        case None:
            text = f"{rank}ended"
        case reason:
            text = f"{rank}ended: {reason}"
    told = attempt.detail and attempt.detail != f"run {text}"
    return f"{text} ({attempt.detail})" if told else text
