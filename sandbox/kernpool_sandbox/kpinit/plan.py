"""What kp-init is asked for and what it tells: plans, execs, jobs and events, as frozen records without I/O.

Sizes are bytes, times are seconds or what the name says. Paths are absolute. A `target` is a path inside the sandbox,
a `source` or `lower` is a path on the host and must lie under a prefix that the spawner was started with.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import final

from kernpool_sandbox.kpinit.filespec import FileEntry as FileEntry  # noqa: PLC0414 - one module names all records
from kernpool_sandbox.kpinit.filespec import FileOp as FileOp  # noqa: PLC0414
from kernpool_sandbox.kpinit.filespec import FileSpec as FileSpec  # noqa: PLC0414
from kernpool_sandbox.kpinit.filespec import FileType as FileType  # noqa: PLC0414

KEEP_RING_BYTES_DEFAULT = 64 * 1024
"""What PID 1 keeps of each output stream while no agent is attached."""


# --- mount operations: done in this order by the child under its new root ---


@final
@dataclass(frozen=True, slots=True)
class Staging:
    """The sandbox's own tmpfs that holds every overlay's upper directory: the disk limit. Must be the first op."""

    size_bytes: int
    """0: no limit of its own (the kernel's default, half of the memory)."""


@final
@dataclass(frozen=True, slots=True)
class Tmpfs:
    """A fresh tmpfs (nosuid, nodev) at the target, which is made when it is missing."""

    target: str
    size_bytes: int
    mode: int = 0o755


@final
@dataclass(frozen=True, slots=True)
class Dir:
    """A directory with its missing parents, which are the sandbox's root's."""

    target: str
    mode: int = 0o755
    owner: int = 0
    """Uid and gid inside; only with an id range."""


@final
@dataclass(frozen=True, slots=True)
class Symlink:
    """A symbolic link at the target; one that exists already is left alone."""

    target: str
    to: str


@final
@dataclass(frozen=True, slots=True)
class File:
    """A small regular file with this content (a whole plan fits one frame of 128 KiB); an existing one is replaced."""

    target: str
    mode: int
    data: bytes


@final
@dataclass(frozen=True, slots=True)
class Bind:
    """A host directory or file shown inside. The target is made when missing (a directory or an empty file)."""

    source: str
    target: str
    read_only: bool = True
    nosuid: bool = True
    nodev: bool = True
    noexec: bool = False
    idmap: bool = False
    """Host uid N appears as uid N inside; needs a privileged spawner and a filesystem that can."""


@final
@dataclass(frozen=True, slots=True)
class Overlay:
    """A private writable view over host directories, topmost first; upper and work lie on the staging tmpfs.

    A target of "/" is the root itself and must come right after Staging; without one the root is an empty tmpfs.
    """

    target: str
    lowers: tuple[str, ...]
    idmap: bool = False
    nosuid: bool = True
    nodev: bool = True


@final
@dataclass(frozen=True, slots=True)
class Proc:
    """A fresh /proc of the sandbox's own pid namespace."""

    target: str = "/proc"


@final
@dataclass(frozen=True, slots=True)
class Dev:
    """A tmpfs with null, zero, full, random, urandom, tty, a devpts of its own, shm and the usual links."""

    target: str = "/dev"
    shm_bytes: int = 64 << 20


@final
@dataclass(frozen=True, slots=True)
class Sysfs:
    """A read-only sysfs of the sandbox's own network namespace (only with netns)."""

    target: str = "/sys"


@final
@dataclass(frozen=True, slots=True)
class Mask:
    """Hide a path: a file under /dev/null, a directory under an empty read-only tmpfs; a missing one is skipped."""

    target: str


@final
@dataclass(frozen=True, slots=True)
class ReadOnly:
    """Make a path inside read-only, with all mounts below it; a missing one is skipped."""

    target: str


MountOp = Staging | Tmpfs | Dir | Symlink | File | Bind | Overlay | Proc | Dev | Sysfs | Mask | ReadOnly


@final
@dataclass(frozen=True, slots=True)
class Rlimit:
    """One resource limit (`resource.RLIMIT_*`); soft and hard alike."""

    resource: int
    value: int


@final
@dataclass(frozen=True, slots=True)
class SandboxPlan:
    """Everything the spawner needs to make one sandbox."""

    ops: tuple[MountOp, ...]
    """Empty when the spawn names a template that holds them."""
    uid_map_start: int = 0
    """First host id of the sandbox's range; must lie in a range the spawner was started with."""
    uid_map_count: int = 0
    """Length of the range; 0: the single-id mapping of a rootless spawner."""
    hostname: str = "sandbox"
    cgroups: tuple[str, ...] = ()
    """Directories that PID 1 joins (v1: one per controller; v2: one)."""
    parked_ttl_s: float = 0.0
    """An unclaimed sandbox ends after this; 0: only the 30 s after it lost its agent."""
    netns: bool = True
    seccomp: bool = True
    allow_setuid: bool = False
    """False: no_new_privs, so setuid files of the image do not count."""
    rlimits: tuple[Rlimit, ...] = ()


# --- execs ---


@final
@dataclass(frozen=True, slots=True)
class ExecSpec:
    """One command to run in a sandbox."""

    exec_id: int
    """Chosen by the agent, 1 to 2^31-1, unique among the execs that are not acknowledged."""
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to (and winning over) the environment given with the claim. HOME, USER, LOGNAME and PATH are set when
    neither has them."""
    cwd: str = ""
    """Empty: "/"."""
    user: str = ""
    """"name", "uid", "name:group" or "uid:gid", looked up in the sandbox's own files; empty: root."""
    timeout_s: float = 0.0
    """0: none. At the deadline every descendant is killed, and the exec ends with EndCause.TIMEOUT."""
    stdin: bool = False
    """False: /dev/null. True: a pipe; the agent holds its only write end, so its close (or death) is end-of-file."""
    keep_ring_bytes: int = KEEP_RING_BYTES_DEFAULT
    """Of each output stream, kept while no agent is attached; older bytes are overwritten and counted."""


class ExecCause(IntEnum):
    """Why an exec ended, as PID 1 saw it (oom and ttl are seen by others)."""

    EXITED = 0
    """Its leader exited or was killed by a signal that PID 1 did not send."""
    TIMEOUT = 1
    """Its deadline passed and every descendant was killed."""
    SIGNALLED = 2
    """A signal asked for by the agent ended it."""
    LOST = 3
    """Its shim was killed from inside the sandbox, so nobody saw the status; all its descendants were killed."""


@final
@dataclass(frozen=True, slots=True)
class Usage:
    """What a leader and its waited-for children used."""

    user_us: int = 0
    system_us: int = 0
    max_rss_kib: int = 0


@final
@dataclass(frozen=True, slots=True)
class ExecStarted:
    """A running exec. The three descriptors belong to the caller (close-on-exec, the agent's side non-blocking)."""

    exec_id: int
    pid: int
    """As seen inside the sandbox."""
    stdin_fd: int
    """-1 without stdin."""
    stdout_fd: int
    stderr_fd: int


@final
@dataclass(frozen=True, slots=True)
class Stream:
    """One output stream after a re-attach."""

    fd: int
    """Where the next bytes come from, the caller's; -1 when the stream is at its end."""
    kept: bytes
    """What PID 1 read while nobody was attached, to be taken before anything from `fd`."""
    dropped_bytes: int
    """Bytes older than `kept` that were overwritten in the ring since the last attach."""
    drained_bytes: int
    """Bytes PID 1 has ever read from this stream; grows from re-attach to re-attach."""


@final
@dataclass(frozen=True, slots=True)
class Reattached:
    """An exec's streams for a newly attached agent."""

    exec_id: int
    stdout: Stream
    stderr: Stream


@final
@dataclass(frozen=True, slots=True)
class ExecRow:
    """One exec in the table of PID 1 (the truth); it stays until acknowledged."""

    exec_id: int
    pid: int
    running: bool
    status: int
    """Raw wait status once ended."""
    cause: ExecCause
    usage: Usage

    @property
    def exit_code(self) -> int:
        """The exit code, or 128 + the signal's number."""
        return exit_code(self.status)


# --- jobs ---


@final
@dataclass(frozen=True, slots=True)
class Step:
    """One command of a job; the next one starts when it exits with 0."""

    name: str
    argv: tuple[str, ...]
    timeout_s: float = 0.0
    """0: no deadline of its own."""


@final
@dataclass(frozen=True, slots=True)
class JobUser:
    """The identity of a job's processes on the host; the spawner refuses uids it was not started with."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class JobPlan:
    """One rank of a job, run by a supervisor that outlives agent and spawner.

    Its files lie in `<state>/j/<id>/`: `status` (the record) and `log.<16-digit start offset>` segments.
    """

    job_id: str
    """As a file name: also the name of the socket `<state>/j/<id>.sock`; never used twice."""
    steps: tuple[Step, ...]
    env: Mapping[str, str]
    cwd: str
    user: JobUser | None = None
    """None: the spawner's own identity."""
    cgroups: tuple[str, ...] = ()
    """Directories that each step joins; the supervisor stays outside."""
    log_bytes_max: int = 1 << 30
    segment_bytes: int = 8 << 20
    grace_s: float = 10.0
    """Between SIGTERM and SIGKILL at a deadline (a stop brings its own)."""
    timeout_s: float = 0.0
    """Deadline of the whole job; 0: none."""
    rlimits: tuple[Rlimit, ...] = ()


class JobCause(IntEnum):
    """Why a job ended, as its supervisor saw it."""

    EXITED = 0
    """The last step's leader exited, or an earlier one with a status that is not 0."""
    TIMEOUT = 1
    """A step's or the job's deadline passed."""
    STOPPED = 2
    """The agent asked for the stop; the record repeats the agent's text."""
    START_FAILED = 3
    """A step could not be started; the record has errno and what failed."""


# --- who answers, and what it reports by itself ---


class Kind(IntEnum):
    """Which program of kp-init answers on a socket."""

    SPAWNER = 1
    SANDBOX = 2
    JOB = 3


@final
@dataclass(frozen=True, slots=True)
class Hello:
    """The first answer on every connection."""

    proto: int
    kind: Kind
    id: str
    boot_id: str
    claimed: bool = False
    """Of a sandbox: it has been handed out."""
    ttl_left_ms: int = -1
    """Of a claimed sandbox; -1: none."""
    execs: int = 0
    """Rows in its table."""
    pidfd: int = -1
    """Of the PID 1 or supervisor; belongs to the client object that made the attach and is closed with it."""

    @property
    def pid(self) -> int:
        """Its pid in this process's pid namespace; -1 when it is gone or unknown."""
        if self.pidfd < 0:
            return -1
        lines = Path(f"/proc/self/fdinfo/{self.pidfd}").read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("Pid:")), -1)


@final
@dataclass(frozen=True, slots=True)
class ExecExited:
    """A leader ended (a hint: the list is the truth until ack); output may still come: drain it with a bound."""

    exec_id: int
    status: int
    cause: ExecCause
    usage: Usage
    disk_full: bool = False
    """It failed, and the sandbox's disk has no room."""

    @property
    def exit_code(self) -> int:
        """The exit code, or 128 + the signal's number."""
        return exit_code(self.status)


@final
@dataclass(frozen=True, slots=True)
class StepStarted:
    """A job's step began (index into JobPlan.steps)."""

    index: int
    pid: int


@final
@dataclass(frozen=True, slots=True)
class LogGrew:
    """A job's log reaches to this offset now (a hint, at most some hundred a second; the last one always comes)."""

    end_offset: int


@final
@dataclass(frozen=True, slots=True)
class JobExited:
    """A job is over: no process of it is left and its record is on disk."""

    status: int
    cause: JobCause

    @property
    def exit_code(self) -> int:
        """The exit code, or 128 + the signal's number."""
        return exit_code(self.status)


@final
@dataclass(frozen=True, slots=True)
class Ended:
    """The other side is gone: the socket closed. Nothing more comes on this connection."""


InitEvent = ExecExited | Ended
JobEvent = StepStarted | LogGrew | JobExited | Ended


# --- what the spawner answers ---


@final
@dataclass(frozen=True, slots=True)
class Spawned:
    """A new sandbox or job supervisor. The pidfd belongs to the caller."""

    id: str
    pid: int
    pidfd: int
    socket_path: str


@final
@dataclass(frozen=True, slots=True)
class Child:
    """One living child of this spawner."""

    id: str
    kind: Kind
    pid: int


@final
@dataclass(frozen=True, slots=True)
class ChildEnded:
    """A child of this spawner is gone: reaped, its socket removed, its end record complete (a hint)."""

    id: str
    kind: Kind
    status: int
    """Raw wait status of PID 1 or the supervisor."""


def exit_code(status: int) -> int:
    """Turn a raw wait status into the exit code, or 128 + the signal's number."""
    signal = status & 0x7F
    return 128 + signal if signal else (status >> 8) & 0xFF
