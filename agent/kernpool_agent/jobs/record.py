"""What a supervisor's record and the cgroup's counters say about an attempt, in the link's words: pure functions."""

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, assert_never, final

from kernpool_agent.jobs.plan import RUN, SETUP
from kernpool_agent.records import AttemptKey
from kernpool_mesh.messages import AttemptState, AttemptStatus
from kernpool_mesh.reasons import EndReason
from kernpool_sandbox.kpinit.plan import JobCause
from kernpool_sandbox.kpinit.record import JobRecord, JobState

_NOT_STARTED_CODE: Final = 127


@final
@dataclass(frozen=True, slots=True)
class End:
    """How an attempt ended."""

    reason: EndReason
    exit_code: int
    detail: str


def end_of(record: JobRecord, oom_kills: int) -> End:
    """Read how the attempt of an ENDED record ended."""
    match record.cause:
        case JobCause.STOPPED:
            return End(_stop_reason(record.detail), record.exit_code, _ended_as(record))
        case JobCause.TIMEOUT:
            return End(EndReason.TIMEOUT, record.exit_code, _sentence(f"{record.step_name} ran into its time limit"))
        case JobCause.START_FAILED:
            return _start_failed(record)
        case JobCause.EXITED:
            return _exited(record, oom_kills)
        case _:
            assert_never(record.cause)


def lost(record: JobRecord | None, boot_id: str, oom_kills: int) -> End:
    """Judge an attempt that has no living supervisor and no ended record."""
    if oom_kills:
        return End(EndReason.OOM, 0, _oom_text(oom_kills) + "; its supervisor ended with it")
    if record is None:
        return End(EndReason.LOST, 0, "it was accepted, but nothing shows that it ever started")
    if record.boot_id != boot_id:
        return End(EndReason.LOST, 0, "the node restarted while it ran")
    return End(EndReason.LOST, 0, "its supervisor died, so nobody saw how it ended")


def status_of(key: AttemptKey, record: JobRecord | None, log_bytes: int, end: End | None = None) -> AttemptStatus:
    """Tell an attempt's status; with `end` it is over."""
    status = AttemptStatus(key.job_id, key.index, key.fence, AttemptState.ACCEPTED, log_bytes=log_bytes)
    if record is not None:
        status.state = state_of_step(record.step_name) if record.step >= 0 else AttemptState.ACCEPTED
        status.started_unix_s = record.started_unix_ms / 1000
    if end is not None:
        status.state = AttemptState.ENDED
        status.reason, status.exit_code, status.detail = end.reason, end.exit_code, end.detail
    if record is not None and record.state is JobState.ENDED:
        status.ended_unix_s = record.ended_unix_ms / 1000
    return status


def state_of_step(name: str) -> AttemptState:
    """Tell which state the running step of this name is."""
    return AttemptState.SETTING_UP if name == SETUP else AttemptState.RUNNING


def _exited(record: JobRecord, oom_kills: int) -> End:
    code = record.exit_code
    if code == 0:
        return End(EndReason.EXITED, 0, _lost_output(record))
    # Who is killed is often a child, and the leader then exits with a code of its own: the counter tells the cause.
    if oom_kills:
        return End(EndReason.OOM, code, _sentence(_oom_text(oom_kills), _ended_as(record)))
    if record.log_lost_bytes:
        return End(EndReason.DISK_FULL, code, _sentence(_lost_output(record), _ended_as(record)))
    reason = EndReason.KILLED if record.status & 0x7F else EndReason.EXITED
    return End(reason, code, _ended_as(record))


def _start_failed(record: JobRecord) -> End:
    text = _sentence(f"{record.step_name or RUN} could not be started", record.detail)
    reason = EndReason.DISK_FULL if "No space left" in record.detail else EndReason.START_FAILED
    return End(reason, record.exit_code or _NOT_STARTED_CODE, text)


def _stop_reason(detail: str) -> EndReason:
    try:
        return EndReason(detail)
    except ValueError:
        return EndReason.CANCELLED  # a stop by hand, or by an agent that knew another word


def _ended_as(record: JobRecord) -> str:
    step = record.step_name or RUN
    number = record.status & 0x7F
    if number:
        return f"{step} was killed by {_signal_name(number)}"
    return f"{step} exited with {record.exit_code}" if record.exit_code or step == SETUP else ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _oom_text(kills: int) -> str:
    return f"the kernel killed {kills} process{'es' if kills > 1 else ''} at the memory limit"


def _lost_output(record: JobRecord) -> str:
    if not record.log_lost_bytes:
        return ""
    return f"the node's disk was full: {record.log_lost_bytes} bytes of output are missing in the log"


def _sentence(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def newest(keys: Iterable[AttemptKey]) -> AttemptKey | None:
    """Give the attempt with the highest fence."""
    return max(keys, key=lambda key: key.fence, default=None)
