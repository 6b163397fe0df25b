"""The records that outlive everybody: how a sandbox ended (`s/<id>.end`) and where a job stands (`j/<id>/status`).

Both are text, one `key value` per line. An end record is made empty before the sandbox is; whoever sees the end first
(PID 1 itself, else the spawner) fills it. A job's record is replaced as a whole by rename.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import final

from kernpool_sandbox.kpinit.plan import JobCause, Usage, exit_code


class EndCause(StrEnum):
    """How a sandbox ended."""

    SHUTDOWN = "shutdown"
    """Asked for on its control socket."""
    TTL = "ttl"
    """Its time to live (or its parked time to live) passed."""
    ORPHANED = "orphaned"
    """Nobody had claimed it and its agent was gone for 30 s."""
    KILLED = "killed"
    """The spawner was asked to kill it."""
    DIED = "died"
    """PID 1 died of something else; `status` says what."""
    SETUP_FAILED = "setup_failed"
    """It could not be made; `detail` says which step failed and why."""


@final
@dataclass(frozen=True, slots=True)
class EndRecord:
    """How one sandbox ended."""

    cause: EndCause
    ended_unix_ms: int
    status: int = 0
    """Raw wait status of PID 1; 0 when only PID 1 itself wrote."""
    detail: str = ""


class JobState(StrEnum):
    """Where a job stands."""

    STARTING = "starting"
    """The supervisor lives; no step has started."""
    RUNNING = "running"
    """A step's leader runs."""
    ENDING = "ending"
    """The leader ended or is being ended; its descendants are being ended too."""
    ENDED = "ended"
    """No process is left."""


@final
@dataclass(frozen=True, slots=True)
class JobRecord:
    """What a job's supervisor last wrote to disk."""

    state: JobState
    boot_id: str
    """A record that is not ENDED and of another boot is of a lost job."""
    pid: int
    step: int = -1
    step_name: str = ""
    started_unix_ms: int = 0
    ended_unix_ms: int = 0
    cause: JobCause = JobCause.EXITED
    status: int = 0
    """Raw wait status of the last step's leader."""
    detail: str = ""
    """The agent's text of a stop, or what could not be started and why."""
    log_bytes: int = 0
    """Bytes ever written to the log (true when ENDED; while it runs the segments tell)."""
    log_lost_bytes: int = 0
    """Output that could not be written (a full disk)."""
    usage: Usage = field(default_factory=Usage)

    @property
    def exit_code(self) -> int:
        """The exit code, or 128 + the signal's number."""
        return exit_code(self.status)


def _fields(text: str) -> dict[str, str]:
    return {key: value for key, _, value in (line.partition(" ") for line in text.splitlines())}


def parse_end_record(text: str) -> EndRecord | None:
    """Read an end record; None when it is empty (alive, or nobody saw the end)."""
    fields = _fields(text)
    if "cause" not in fields:
        return None
    return EndRecord(
        cause=EndCause(fields["cause"]),
        ended_unix_ms=int(fields.get("ended_unix_ms", "0")),
        status=int(fields.get("status", "0")),
        detail=fields.get("detail", ""),
    )


def parse_job_record(text: str) -> JobRecord:
    """Read a job's record; raises KeyError or ValueError on one that no supervisor wrote."""
    fields = _fields(text)

    def number(key: str) -> int:
        return int(fields.get(key, "0"))

    return JobRecord(
        state=JobState(fields["state"]),
        boot_id=fields["boot_id"],
        pid=number("pid"),
        step=int(fields.get("step", "-1")),
        step_name=fields.get("step_name", ""),
        started_unix_ms=number("started_unix_ms"),
        ended_unix_ms=number("ended_unix_ms"),
        cause=JobCause(number("cause")),
        status=number("status"),
        detail=fields.get("detail", ""),
        log_bytes=number("log_bytes"),
        log_lost_bytes=number("log_lost_bytes"),
        usage=Usage(number("user_us"), number("system_us"), number("max_rss_kib")),
    )


def end_record_path(state_dir: Path, sandbox_id: str) -> Path:
    """Where the end record of a sandbox lies."""
    return state_dir / "s" / f"{sandbox_id}.end"


def job_dir(state_dir: Path, job_id: str) -> Path:
    """Where the record and the log segments of a job lie."""
    return state_dir / "j" / job_id


def read_end_record(state_dir: Path, sandbox_id: str) -> EndRecord | None:
    """Read how a sandbox ended; None when it has not, or nobody saw it; raises FileNotFoundError for an unknown one."""
    return parse_end_record(end_record_path(state_dir, sandbox_id).read_text(errors="replace"))


def read_job_record(state_dir: Path, job_id: str) -> JobRecord:
    """Read where a job stands; raises FileNotFoundError for one whose supervisor never began."""
    return parse_job_record((job_dir(state_dir, job_id) / "status").read_text(errors="replace"))
