"""The table of a job's states."""

import itertools

import pytest

from kernpool_coordinator.jobs.record import IllegalStepError, Job, job_number
from kernpool_coordinator.jobs.retry import RETRY, RetryRule, delay_before
from kernpool_coordinator.jobs.states import JOB_STEPS, OVER, JobState
from kernpool_coordinator.placement import Ask
from kernpool_mesh.reasons import EndReason


def job(state: JobState) -> Job:
    made = Job(1, "default", "ann", "job", "", 1, 0, (Ask(),), "{}", 0.0)
    made.history.append("submitted")
    made.state = state
    return made


@pytest.mark.parametrize(("before", "after"), list(itertools.product(JobState, JobState)))
def test_only_steps_of_the_table_are_taken(before: JobState, after: JobState) -> None:
    one = job(before)
    if after is before or after in JOB_STEPS[before]:
        one.step(after, "test")
        assert one.state is after
        return
    with pytest.raises(IllegalStepError, match=f"j-1: {before} -> {after} \\(test\\) is no step; before: submitted"):
        one.step(after, "test")


def test_nothing_leaves_a_final_state() -> None:
    assert all(not JOB_STEPS[state] for state in OVER)


def test_every_end_reason_has_a_rule() -> None:
    assert set(RETRY) == set(EndReason)
    assert RETRY[EndReason.LOST].tries == 0


def test_delays_grow_to_a_bound_and_are_spread() -> None:
    rule = RetryRule(tries=9, delay_s=1.0, delay_s_max=8.0)
    assert [delay_before(rule, failures, 0.5) for failures in range(1, 7)] == [1, 2, 4, 8, 8, 8]
    assert delay_before(rule, 1, 0.0) == 0.75
    assert delay_before(rule, 10_000, 0.999) < 10


@pytest.mark.parametrize(
    ("text", "number"), [("j-17", 17), ("j-", None), ("j-x", None), ("x-1", None), ("", None), ("j-\u0661", None)]
)
def test_job_ids_are_read_strictly(text: str, number: int | None) -> None:
    assert job_number(text) == number
