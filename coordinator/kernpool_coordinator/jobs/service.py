"""Jobs as the API asks for them: submit, show, list, cancel, wait; and what nodes report of attempts."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Final, final

from sqlalchemy import Connection, func, select

from kernpool.bodies import SubmitJob
from kernpool_coordinator.clusters.book import ClusterState
from kernpool_coordinator.core.clock import Clock
from kernpool_coordinator.core.shapes import AttemptPlace, Listing
from kernpool_coordinator.errors import (
    BusyError,
    ConflictError,
    CoordinatorError,
    InvalidError,
    NotFoundError,
)
from kernpool_coordinator.idempotency.keys import Keys, UsedKey, fingerprint
from kernpool_coordinator.jobs import rows
from kernpool_coordinator.jobs.bodies import job_body
from kernpool_coordinator.jobs.desk import JobDesk
from kernpool_coordinator.jobs.instructions import Instruction
from kernpool_coordinator.jobs.record import Attempt, Job, job_number
from kernpool_coordinator.jobs.states import OVER, PROGRESS, AttemptPhase, JobState
from kernpool_coordinator.jobs.submission import Submission, check_submission
from kernpool_coordinator.store import Operation, Seal, Store, schema
from kernpool_coordinator.tokens.actor import Actor
from kernpool_mesh.messages import AttemptStatus

PENDING_MAX: Final = 20_000
"""Jobs that may wait for a place."""
PAGE_MAX: Final = 1_000
CANCEL_WAIT_S: Final = 5.0
"""For the cancel to be on disk. Work must be stoppable with a full disk too: afterwards it is answered anyway."""


@final
class JobService:
    """The jobs' side of the control plane."""

    def __init__(self, desk: JobDesk, store: Store, seal: Seal, keys: Keys, clock: Clock) -> None:
        self._desk = desk
        self._scheduler = desk.scheduler
        self._store = store
        self._seal = seal
        self._keys = keys
        self._clock = clock
        self._submitting: dict[int, asyncio.Task[None]] = {}
        """Commits of new jobs that are under way."""
        self._background: set[asyncio.Task[None]] = set()
        """Look-ups in the store that nobody waits for; kept so that they are not collected."""

    async def load(self) -> None:
        """Take the jobs that are not over, and count those that are."""
        for job in await self._store.read(rows.read_active):
            self._scheduler.restore_job(job)
        counts, newest = await self._store.read(_counts)
        self._desk.over = {state: counts.get(state, 0) for state in OVER}
        self._scheduler.jobs.next_number = max(self._scheduler.jobs.next_number, newest + 1)

    # --- submit ---

    async def submit(self, actor: Actor, body: SubmitJob) -> dict[str, object]:
        """Take a job; JobBody once it is durable."""
        used = self._used_key(actor, body)
        if used is not None:
            return await self._answer_again(used)
        checked = check_submission(body)
        if len(self._scheduler.jobs.pending) >= PENDING_MAX:
            raise BusyError(f"{PENDING_MAX} jobs wait for a place already", hint="kernpool queue")
        self._check_cluster(actor, body, checked)
        job = self._new_job(actor, body, checked)
        key = None
        if body.idempotency_key:
            name = _fingerprint(body)
            key = self._keys.use(actor, "job", body.idempotency_key, name, {"job": job.id}, job.created_unix_s)
        instructions = self._scheduler.submit(job, actor.name, self._clock.now())
        # A task of its own: a caller that hangs up must not leave a job half accepted.
        task = asyncio.create_task(self._accept(job, instructions, key), name=f"accept {job.id}")
        self._submitting[job.number] = task
        task.add_done_callback(lambda done: self._accepted(job, done))
        await asyncio.shield(task)
        return job_body(job)

    def _accepted(self, job: Job, done: asyncio.Task[None]) -> None:
        del self._submitting[job.number]
        if not done.cancelled():
            done.exception()  # the caller has it, unless it hung up and nobody wants to know

    def _used_key(self, actor: Actor, body: SubmitJob) -> UsedKey | None:
        if not body.idempotency_key:
            return None
        return self._keys.find(actor, "job", body.idempotency_key, _fingerprint(body))

    async def _answer_again(self, used: UsedKey) -> dict[str, object]:
        job_id = str(used.outcome["job"])
        under_way = self._submitting.get(job_number(job_id) or 0)
        if under_way is not None:
            await asyncio.shield(under_way)
        return job_body(await self._find(job_id, None))

    def _check_cluster(self, actor: Actor, body: SubmitJob, checked: Submission) -> None:
        """Say at once what could never work, instead of letting the job wait for ever."""
        if body.cluster is None:
            if body.must_exist:
                raise InvalidError("`must_exist` needs the name of a cluster")
            return
        cluster = self._scheduler.clusters.get(actor.workspace, body.cluster)
        if cluster is None:
            if body.must_exist:
                hint = f"kernpool launch -c {body.cluster} FILE"
                raise NotFoundError(f"There is no cluster {body.cluster}.", hint=hint)
            return
        if cluster.state is ClusterState.DOWN:
            message = f"cluster {cluster.name} is being taken down: its jobs are ending"
            raise ConflictError(message, hint="wait until it is gone from `kernpool status`, or use another name")
        shortage = cluster.shortage(checked.asks, checked.num_nodes)
        if shortage:
            message = f"the task does not fit into cluster {cluster.name}: {shortage}"
            raise ConflictError(message, hint=f"use another cluster name, or `kernpool down {cluster.name}` first")

    def _new_job(self, actor: Actor, body: SubmitJob, checked: Submission) -> Job:
        number = self._scheduler.jobs.next_number
        job = Job(
            number=number,
            workspace=actor.workspace,
            owner=actor.name,
            name=checked.name,
            cluster=body.cluster or "",
            num_nodes=checked.num_nodes,
            priority=checked.priority,
            asks=checked.asks,
            task=checked.document,
            created_unix_s=self._clock.now().unix,
            error_tries=checked.error_tries,
            recover_codes=checked.recover_codes,
        )
        if checked.secrets:
            job.secrets = self._seal.seal(checked.secrets, f"job/{job.id}")
        # What other events left to be done is not this job's, and must not fail with it.
        self._desk.settle([])
        return job

    async def _accept(self, job: Job, instructions: Sequence[Instruction], key: UsedKey | None) -> None:
        more: list[Operation] = [key.put()] if key is not None else []
        try:
            await self._desk.do_now(instructions, more, job)
        except CoordinatorError:
            if key is not None:
                self._keys.forget(key)
            self._desk.do_later(self._scheduler.withdraw(job, self._clock.now()))
            raise

    # --- show ---

    async def job(self, actor: Actor, job_id: str) -> dict[str, object]:
        """JobBody."""
        return job_body(await self._find(job_id, actor))

    async def page(self, actor: Actor, *, cluster: str, state: str, limit: int, after: str) -> Listing:
        """JobBody each, newest first."""
        before = job_number(after) if after else None
        if after and before is None:
            raise InvalidError(f"{after!r} is no cursor of this listing")
        if state and state not in set(JobState):
            raise InvalidError(f"{state!r} is no state of a job", hint=f"one of {', '.join(JobState)}")
        limit = max(1, min(limit, PAGE_MAX))
        if state and JobState(state) not in OVER:
            found = self._active_page(actor, cluster, JobState(state), limit + 1, before)
        else:
            found = await self._stored_page(actor, cluster, state, limit + 1, before)
        items = [job_body(job) for job in found[:limit]]
        return Listing(items, found[limit - 1].id if len(found) > limit else "")

    def _active_page(self, actor: Actor, cluster: str, state: JobState, limit: int, before: int | None) -> list[Job]:
        """From memory, which is ahead of the store."""
        found = [
            job
            for job in self._scheduler.jobs.jobs.values()
            if job.state is state
            and job.durable
            and (actor.is_admin or job.workspace == actor.workspace)
            and (not cluster or job.cluster == cluster)
            and (before is None or job.number < before)
        ]
        return sorted(found, key=lambda job: -job.number)[:limit]

    async def _stored_page(self, actor: Actor, cluster: str, state: str, limit: int, before: int | None) -> list[Job]:
        """From the store, each job as memory has it where it has it."""
        workspace = None if actor.is_admin else actor.workspace

        def read(connection: Connection) -> list[Job]:
            return rows.read_page(
                connection, workspace=workspace, cluster=cluster, state=state, before=before, limit=limit
            )

        stored = await self._store.read(read)
        known = self._scheduler.jobs.jobs
        return [known.get(job.number, job) for job in stored]

    async def _find(self, job_id: str, actor: Actor | None) -> Job:
        number = job_number(job_id)
        job = self._scheduler.jobs.jobs.get(number) if number is not None else None
        if job is None and number is not None:
            stored = await self._store.read(lambda connection: rows.read_numbers(connection, [number]))
            job = stored[0] if stored else None
        if job is None or not job.durable or not _may_see(actor, job.workspace):
            raise NotFoundError(f"There is no job {job_id}.", hint="kernpool queue")
        return job

    def workspace_of(self, job_id: str) -> str | None:
        """The workspace of a job that is in memory; None when it is not (the store then decides when it is read)."""
        job = self._scheduler.jobs.get(job_id)
        return job.workspace if job is not None else None

    def counts(self) -> dict[str, int]:
        """Number of jobs by state."""
        counts = {str(state): 0 for state in JobState} | {str(key): value for key, value in self._desk.over.items()}
        for job in self._scheduler.jobs.jobs.values():
            if not job.over and job.durable:
                counts[job.state] += 1
        return counts

    # --- end ---

    async def cancel(self, actor: Actor, job_id: str, cause: str) -> dict[str, object]:
        """Ask for its end; JobBody as it is now."""
        job = await self._find(job_id, actor)
        if not job.over:
            cancelled = self._scheduler.jobs.cancel(job, actor.name, cause, self._clock.now())
            await self._desk.settle_now(cancelled, CANCEL_WAIT_S)
        return job_body(job)

    async def wait(self, actor: Actor, job_id: str, timeout_s: float) -> dict[str, object]:
        """JobBody once it has ended and that is on disk, or when the time is over."""
        job = await self._find(job_id, actor)
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not job.told_over and await self._desk.wait_change(job, deadline):
            pass
        return job_body(job)

    # --- places ---

    async def place(self, actor: Actor, job_id: str, index: int) -> AttemptPlace:
        """Where a rank is."""
        job = await self._find(job_id, actor)
        return self._place(job, index)

    async def wait_started(self, actor: Actor, job_id: str, index: int, timeout_s: float) -> AttemptPlace:
        """As `place`, once the rank has begun or the job is over, or when the time is over."""
        job = await self._find(job_id, actor)
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            place = self._place(job, index)
            if place.started or place.job_ended or not await self._desk.wait_change(job, deadline):
                return place

    def _place(self, job: Job, index: int) -> AttemptPlace:
        if not 0 <= index < job.num_nodes:
            ranks = "rank 0 alone" if job.num_nodes == 1 else f"ranks 0 to {job.num_nodes - 1}"
            raise NotFoundError(f"job {job.id} has no rank {index}: it has {ranks}")
        attempt = job.attempts.get(index)
        if attempt is None:
            return AttemptPlace(job.id, index, 0, "", started=False, ended=False, job_ended=job.over)
        return AttemptPlace(
            job.id,
            index,
            attempt.fence,
            attempt.node_id,
            started=_has_begun(attempt),
            ended=not attempt.live,
            job_ended=job.over,
        )

    # --- the store ---

    async def prune(self, kept: int) -> None:
        """Remove the oldest jobs that are over, beyond the newest `kept`, here and on their nodes."""
        numbers, nodes = await self._store.read(lambda connection: rows.read_old(connection, kept))
        if not numbers:
            return
        await self._store.write(rows.delete_jobs(numbers))
        for number in numbers:
            self._scheduler.jobs.forget(number)
        self._desk.forget_on(nodes, [f"j-{number}" for number in numbers])
        counts, _ = await self._store.read(_counts)
        self._desk.over = {state: counts.get(state, 0) for state in OVER}

    async def close(self) -> None:
        """Wait for what is under way."""
        await asyncio.gather(*self._submitting.values(), *self._background, return_exceptions=True)

    # --- what nodes tell ---

    def reported(self, node_id: str, status: AttemptStatus) -> None:
        """One attempt changed."""
        if self._unknown([status]):
            self._in_background(self._look_up_then_report(node_id, [status], complete=False))
            return
        self._desk.settle(self._scheduler.jobs.reported(node_id, status, self._clock.now()))

    async def synced(self, node_id: str, statuses: Sequence[AttemptStatus]) -> None:
        """A node that linked told all it holds."""
        await self._look_up_then_report(node_id, statuses, complete=True)

    def settle(self) -> None:
        """Start what may start: a node came or has more room."""
        self._desk.settle([])

    def node_unreachable(self, node_id: str) -> None:
        """The node is silent."""
        self._desk.settle(self._scheduler.jobs.node_unreachable(node_id, self._clock.now()))

    def node_lost(self, node_id: str, cause: str) -> None:
        """The node is given up."""
        self._desk.do_later(self._scheduler.node_lost(node_id, cause, self._clock.now()))

    def _unknown(self, statuses: Sequence[AttemptStatus]) -> list[int]:
        """Numbers that are not in memory: over for long, pruned, or of a store that was lost."""
        numbers = {job_number(status.job_id) for status in statuses}
        return [number for number in numbers if number is not None and number not in self._scheduler.jobs.jobs]

    async def _look_up_then_report(self, node_id: str, statuses: Sequence[AttemptStatus], *, complete: bool) -> None:
        unknown = self._unknown(statuses)
        if unknown:
            stored = await self._store.read(lambda connection: rows.read_numbers(connection, unknown))
            for job in stored:
                if job.number not in self._scheduler.jobs.jobs:
                    self._scheduler.jobs.restore(job)
        book, now = self._scheduler.jobs, self._clock.now()
        if complete:
            self._desk.settle(book.node_synced(node_id, statuses, now))
            return
        for status in statuses:
            self._desk.settle(book.reported(node_id, status, now))

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _has_begun(attempt: Attempt) -> bool:
    """Whether it has a log: it got to its commands, or ended after it had begun."""
    if attempt.phase is AttemptPhase.ENDED:
        return attempt.started_unix_s is not None
    return PROGRESS[attempt.phase] >= PROGRESS[AttemptPhase.SETTING_UP]


def _may_see(actor: Actor | None, workspace: str) -> bool:
    return actor is None or actor.is_admin or actor.workspace == workspace


def _fingerprint(body: SubmitJob) -> str:
    def hide(data: dict[str, object]) -> None:
        task = data["task"]
        assert isinstance(task, dict)
        for name in ("secrets", "envs"):
            if isinstance(task.get(name), dict):
                task[name] = sorted(task[name])

    return fingerprint(body, hide)


def _counts(connection: Connection) -> tuple[dict[str, int], int]:
    table = schema.jobs
    counts = connection.execute(select(table.c.state, func.count()).group_by(table.c.state))
    found: dict[str, int] = {row[0]: row[1] for row in counts}
    newest = connection.execute(select(func.max(table.c.number))).scalar() or 0
    return found, newest
