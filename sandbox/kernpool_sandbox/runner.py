"""Runs commands in a sandbox: collected within bounds (`Collected`) or streamed (`Process`).

A command is over when its leader is, plus a short drain: grandchildren that hold its pipes hold nobody up.
"""

import asyncio
import errno
import signal
import time
from typing import Protocol, final

from kernpool_mesh.messages import Command, CommandResult
from kernpool_mesh.reasons import EndReason
from kernpool_sandbox.kpinit.init import InitClient
from kernpool_sandbox.kpinit.plan import ExecCause, ExecExited, ExecSpec, ExecStarted
from kernpool_sandbox.pipes import Bounded, Chunks, PipeReader, PipeWriter

WATCH_AFTER_S = 0.0015
"""A command that ends sooner is read at its end: no pipe of it is ever watched, which would cost as much as it does."""
SIGKILL_CODE = 128 + signal.SIGKILL
NOT_FOUND_CODE = 127
NOT_EXECUTABLE_CODE = 126
_START_CODES = {errno.ENOENT: NOT_FOUND_CODE, errno.ENOTDIR: NOT_FOUND_CODE}


class Place(Protocol):
    """What a running command asks the sandbox that it runs in."""

    def oom_kills(self) -> int:
        """Return how often the OOM killer struck in its cgroup, now."""

    def oom_kills_so_far(self) -> int:
        """Return the same at the start of a command; before the first one no file has to be read for it."""


def spec_of(command: Command, exec_id: int, *, user: str, cwd: str, stdin: bool) -> ExecSpec:
    """Return what kp-init is asked for; `user` and `cwd` are the template's, for a command that names none."""
    return ExecSpec(
        exec_id,
        tuple(command.argv),
        command.env,
        command.cwd or cwd,
        command.user or user,
        command.timeout_s,
        stdin,
    )


def could_not_start(command: Command, error: OSError) -> CommandResult:
    """Return the result of a command that the kernel or kp-init refused to start, with a shell's exit codes."""
    what = command.argv[0] if command.argv else "an empty command"
    reason = error.strerror or str(error)
    return CommandResult(
        EndReason.START_FAILED,
        _START_CODES.get(error.errno or 0, NOT_EXECUTABLE_CODE),
        detail=f"{what} could not be started: {reason}",
    )


@final
class Execution:
    """One started command: its pipes, its exit, and the verdict on both."""

    __slots__ = (
        "_drain_s",
        "_early_exit",
        "_exited",
        "_loop",
        "_oom_kills_before",
        "_place",
        "_started_s",
        "_timeout_s",
        "_timer",
        "_verdict",
        "first_output_ms",
        "over",
        "stderr",
        "stdin",
        "stdout",
    )

    def __init__(self, place: Place, *, started_s: float, timeout_s: float, drain_s: float) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._place = place
        self._oom_kills_before = place.oom_kills_so_far()
        self._timeout_s = timeout_s
        self._drain_s = drain_s
        self._started_s = started_s
        """When the command was asked for (monotonic)."""
        self._exited = False
        self._early_exit: ExecExited | None = None
        """The exit, when it was told before the start."""
        self._timer: asyncio.TimerHandle | None = None
        """Before the exit: begins to watch the pipes. After it: ends the drain."""
        self._verdict: CommandResult | None = None
        """Reason and exit code, once the leader is over."""
        self.over: asyncio.Future[CommandResult] = loop.create_future()
        """Done when the leader is over and its output was read or given up; the result has no output in it."""
        self.first_output_ms = -1.0
        self.stdin: PipeWriter | None = None
        self.stdout: PipeReader | None = None
        self.stderr: PipeReader | None = None

    def connect(self, started: ExecStarted, stdout: Bounded | Chunks, stderr: Bounded | Chunks) -> None:
        """Take over the pipes and begin to read the output into these sinks."""
        if started.stdin_fd >= 0:
            self.stdin = PipeWriter(self._loop, started.stdin_fd)
        self.stdout = PipeReader(self._loop, started.stdout_fd, stdout, self._pipe_ended)
        self.stderr = PipeReader(self._loop, started.stderr_fd, stderr, self._pipe_ended)
        for sink, reader in ((stdout, self.stdout), (stderr, self.stderr)):
            if isinstance(sink, Chunks):
                sink.attach(reader)
                reader.resume()
        if self._early_exit is not None:
            self.exited(self._early_exit)
        elif isinstance(stdout, Bounded):
            self._timer = self._loop.call_later(WATCH_AFTER_S, self._watch)

    def first_output(self) -> None:
        """The first byte came (or the exit)."""
        if self.first_output_ms < 0:
            self.first_output_ms = (time.monotonic() - self._started_s) * 1000

    def exited(self, event: ExecExited) -> None:
        """The leader is over: judge it, read what is left, and be done unless others hold the pipes."""
        if self.stdout is None:
            self._early_exit = event
            return
        self._end(_judge(event, self._place, self._oom_kills_before, self._timeout_s))

    def lost(self, reason: EndReason, detail: str) -> None:
        """The whole sandbox is over, and so is this command."""
        self._end(CommandResult(reason, SIGKILL_CODE, detail=detail))

    def close(self) -> None:
        """Let go of the pipes; the command goes on without them."""
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()
        self._stop_timer()

    def _end(self, verdict: CommandResult) -> None:
        if self._exited:
            return
        self._exited = True
        self._verdict = verdict
        self.first_output()
        if self.stdin is not None:
            self.stdin.close()
        self._stop_timer()
        for reader in (self.stdout, self.stderr):
            if reader is not None:
                reader.drain()
        if not self._finished():
            self._watch()
            self._timer = self._loop.call_later(self._drain_s, self._drained)

    def _watch(self) -> None:
        for reader in (self.stdout, self.stderr):
            if reader is not None and not reader.full:
                reader.resume()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _pipe_ended(self) -> None:
        if self._exited:
            self._finished()

    def _finished(self) -> bool:
        if any(reader is not None and not reader.closed for reader in (self.stdout, self.stderr)):
            return False
        self._resolve()
        return True

    def _drained(self) -> None:
        for reader in (self.stdout, self.stderr):
            if reader is not None:
                reader.finish()
        self._resolve()

    def _resolve(self) -> None:
        self._stop_timer()
        if not self.over.done():
            assert self._verdict is not None
            self._verdict.first_output_ms = self.first_output_ms
            self.over.set_result(self._verdict)


def _judge(event: ExecExited, place: Place, oom_kills_before: int, timeout_s: float) -> CommandResult:
    """Say why a command ended, from what PID 1 saw, the kernel's OOM counter and the state of the disk."""
    code = event.exit_code
    signalled = event.status & 0x7F
    match event.cause:
        case ExecCause.TIMEOUT:
            return CommandResult(EndReason.TIMEOUT, code, detail=f"it ran longer than its {timeout_s:g} s")
        case ExecCause.SIGNALLED:
            return CommandResult(EndReason.CANCELLED, code, detail=f"ended by signal {signalled}, as asked")
        case ExecCause.LOST:
            return CommandResult(EndReason.LOST, code, detail="what watched over it was killed from inside the sandbox")
        case ExecCause.EXITED:
            return _judge_exit(event, place, oom_kills_before)


def _judge_exit(event: ExecExited, place: Place, oom_kills_before: int) -> CommandResult:
    code, signalled = event.exit_code, event.status & 0x7F
    if code == 0:
        return CommandResult(EndReason.EXITED, 0)
    oom = place.oom_kills() > oom_kills_before
    if oom and code == SIGKILL_CODE:
        return CommandResult(EndReason.OOM, code, detail="the sandbox's memory limit was reached")
    if oom:
        return CommandResult(EndReason.EXITED, code, detail="the memory limit was reached and a process of it killed")
    if signalled:
        return CommandResult(EndReason.KILLED, code, detail=f"killed by signal {signalled} ({_signal_name(signalled)})")
    if event.disk_full:
        return CommandResult(EndReason.DISK_FULL, code, detail="it failed while the sandbox's disk was full")
    return CommandResult(EndReason.EXITED, code)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "a real-time signal"


@final
class Process:
    """A command whose streams the caller handles as they come."""

    __slots__ = ("_client", "_execution", "exec_id", "stderr", "stdout")

    def __init__(self, client: InitClient, exec_id: int, execution: Execution, stdout: Chunks, stderr: Chunks) -> None:
        self._client = client
        self._execution = execution
        self.exec_id = exec_id
        self.stdout = stdout
        """Chunks of bytes as they come: `async for chunk in process.stdout`."""
        self.stderr = stderr

    async def write_stdin(self, data: bytes) -> None:
        """Write input; returns when it is taken, or when nobody will ever read it. Without stdin it is dropped."""
        if self._execution.stdin is not None:
            await self._execution.stdin.write(data)

    def close_stdin(self) -> None:
        """Say that no more input comes."""
        if self._execution.stdin is not None:
            self._execution.stdin.end()

    async def signal(self, number: int, *, tree: bool = False) -> None:
        """Send a signal to the leader, or to every process of it; one that is over already is no error."""
        try:
            await self._client.signal(self.exec_id, number, tree=tree)
        except ProcessLookupError:
            return

    async def wait(self) -> CommandResult:
        """Return how it ended, without its output (that is in the streams); may be awaited by several."""
        return await asyncio.shield(self._execution.over)

    def close(self) -> None:
        """Let go of the streams; call `signal` first if it shall end."""
        self._execution.close()


def collected(result: CommandResult, stdout: Bounded, stderr: Bounded) -> CommandResult:
    """Put the collected output into a result."""
    result.stdout, result.stdout_bytes_dropped = stdout.kept, stdout.dropped_bytes
    result.stderr, result.stderr_bytes_dropped = stderr.kept, stderr.dropped_bytes
    return result
