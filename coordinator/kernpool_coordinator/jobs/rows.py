"""Jobs and attempts as rows of the store, and back."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, RowMapping, delete, select

from kernpool_coordinator.jobs.record import Attempt, Job, Outcome, Verdict
from kernpool_coordinator.jobs.states import OVER, AttemptPhase, JobState
from kernpool_coordinator.placement import Ask, Holding
from kernpool_coordinator.store import Operation, Put, Run, schema
from kernpool_mesh.reasons import EndReason


def put_job(job: Job) -> Put:
    """Write a job; should the store be away, the row is made anew when it is back."""

    def row() -> dict[str, Any]:
        return job_row(job)

    return Put(schema.jobs, row(), row)


def put_attempt(job: Job, attempt: Attempt) -> Put:
    """Write an attempt; as above."""

    def row() -> dict[str, Any]:
        return attempt_row(job, attempt)

    return Put(schema.attempts, row(), row)


def job_row(job: Job) -> dict[str, Any]:
    """Make the job's row."""
    return {
        "number": job.number,
        "workspace": job.workspace,
        "owner": job.owner,
        "name": job.name,
        "cluster": job.cluster,
        "state": str(job.state),
        "reason": str(job.reason or ""),
        "exit_code": job.exit_code,
        "detail": job.detail,
        "num_nodes": job.num_nodes,
        "priority": job.priority,
        "fence": job.fence,
        "restarts": job.restarts,
        "failures": job.failures,
        "task": job.task,
        "needs": json.dumps(_needs(job)),
        "secrets": job.secrets,
        "verdict": json.dumps(_verdict_row(job.verdict)) if job.verdict else "",
        "adopted": job.adopted,
        "created_unix_s": job.created_unix_s,
        "started_unix_s": job.started_unix_s,
        "ended_unix_s": job.ended_unix_s,
    }


def attempt_row(job: Job, attempt: Attempt) -> dict[str, Any]:
    """Make the attempt's row."""
    return {
        "job_number": job.number,
        "rank": attempt.index,
        "fence": attempt.fence,
        "workspace": job.workspace,
        "owner": job.owner,
        "node_id": attempt.node_id,
        "state": str(attempt.phase),
        "reason": str(attempt.reason or ""),
        "exit_code": attempt.exit_code,
        "detail": attempt.detail,
        "holding": json.dumps(attempt.holding.as_row()),
        "started_unix_s": attempt.started_unix_s,
        "ended_unix_s": attempt.ended_unix_s,
    }


def read_active(connection: Connection) -> list[Job]:
    """Read every job that is not over, with the attempts of its newest try."""
    return _with_attempts(connection, schema.jobs.c.state.not_in([str(state) for state in OVER]))


def read_numbers(connection: Connection, numbers: Sequence[int]) -> list[Job]:
    """Read these jobs, over or not."""
    return _with_attempts(connection, schema.jobs.c.number.in_(numbers))


def read_page(
    connection: Connection, *, workspace: str | None, cluster: str, state: str, before: int | None, limit: int
) -> list[Job]:
    """Read a page, newest first; workspace None: of all; before None: from the newest."""
    table = schema.jobs
    query = select(table.c.number).order_by(table.c.number.desc()).limit(limit)
    if workspace is not None:
        query = query.where(table.c.workspace == workspace)
    if cluster:
        query = query.where(table.c.cluster == cluster)
    if state:
        query = query.where(table.c.state == state)
    if before is not None:
        query = query.where(table.c.number < before)
    numbers = list(connection.execute(query).scalars())
    return sorted(read_numbers(connection, numbers), key=lambda job: -job.number)


PRUNED_AT_ONCE = 500


def read_old(connection: Connection, kept: int) -> tuple[list[int], list[str]]:
    """Read the numbers of jobs that are over and older than the newest `kept` of these, and their nodes."""
    table, attempts = schema.jobs, schema.attempts
    over = table.c.state.in_([str(state) for state in OVER])
    query = select(table.c.number).where(over).order_by(table.c.number.desc()).offset(kept).limit(PRUNED_AT_ONCE)
    numbers = list(connection.execute(query).scalars())
    nodes = select(attempts.c.node_id).where(attempts.c.job_number.in_(numbers)).distinct()
    return numbers, list(connection.execute(nodes).scalars())


def delete_jobs(numbers: Sequence[int]) -> list[Operation]:
    """Remove jobs with all their attempts."""
    return [
        Run(delete(schema.attempts).where(schema.attempts.c.job_number.in_(numbers))),
        Run(delete(schema.jobs).where(schema.jobs.c.number.in_(numbers))),
    ]


def _with_attempts(connection: Connection, condition: Any) -> list[Job]:
    jobs = {row["number"]: _job(row) for row in connection.execute(select(schema.jobs).where(condition)).mappings()}
    for row in _attempt_rows(connection, condition):
        job = jobs[row["job_number"]]
        if row["fence"] == job.fence:
            job.attempts[row["rank"]] = _attempt(row)
    for job in jobs.values():
        job.attempts = dict(sorted(job.attempts.items()))
    return list(jobs.values())


def _attempt_rows(connection: Connection, condition: Any) -> Iterable[RowMapping]:
    table = schema.attempts
    query = select(table).join(schema.jobs, schema.jobs.c.number == table.c.job_number).where(condition)
    return connection.execute(query).mappings()


def _job(row: RowMapping) -> Job:
    needs = json.loads(row["needs"])
    return Job(
        number=row["number"],
        workspace=row["workspace"],
        owner=row["owner"],
        name=row["name"],
        cluster=row["cluster"],
        num_nodes=row["num_nodes"],
        priority=row["priority"],
        asks=tuple(Ask(**ask) for ask in needs["asks"]),
        task=row["task"],
        created_unix_s=row["created_unix_s"],
        secrets=row["secrets"],
        error_tries=needs["error_tries"],
        recover_codes=frozenset(needs["recover_codes"]),
        ask=Ask(**needs["ask"]) if needs["ask"] else None,
        state=JobState(row["state"]),
        fence=row["fence"],
        verdict=_verdict(json.loads(row["verdict"])) if row["verdict"] else None,
        restarts=row["restarts"],
        failures=row["failures"],
        reason=EndReason(row["reason"]) if row["reason"] else None,
        exit_code=row["exit_code"],
        detail=row["detail"],
        adopted=row["adopted"],
        durable=True,
        told_over=JobState(row["state"]) in OVER,
        started_unix_s=row["started_unix_s"],
        ended_unix_s=row["ended_unix_s"],
    )


def _attempt(row: RowMapping) -> Attempt:
    return Attempt(
        index=row["rank"],
        fence=row["fence"],
        node_id=row["node_id"],
        holding=Holding.from_row(json.loads(row["holding"])),
        phase=AttemptPhase(row["state"]),
        sent=True,  # it may have been: the row was on disk before it was sent
        reason=EndReason(row["reason"]) if row["reason"] else None,
        exit_code=row["exit_code"],
        detail=row["detail"],
        started_unix_s=row["started_unix_s"],
        ended_unix_s=row["ended_unix_s"],
    )


def _needs(job: Job) -> dict[str, Any]:
    return {
        "asks": [ask.as_row() for ask in job.asks],
        "ask": job.ask.as_row() if job.ask else None,
        "error_tries": job.error_tries,
        "recover_codes": sorted(job.recover_codes),
    }


def _verdict_row(verdict: Verdict) -> dict[str, Any]:
    return {
        "outcome": str(verdict.outcome),
        "reason": str(verdict.reason),
        "exit_code": verdict.exit_code,
        "detail": verdict.detail,
        "delay_s": verdict.delay_s,
    }


def _verdict(row: Mapping[str, Any]) -> Verdict:
    return Verdict(Outcome(row["outcome"]), EndReason(row["reason"]), row["exit_code"], row["detail"], row["delay_s"])
