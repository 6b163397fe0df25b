"""Starts commands in a slot: `run` collects the output of one to its end, `stream` hands its streams to the caller.

KpInitError means that the sandbox is gone; whatever else a command does or fails to do is in its result.
"""

import asyncio
import signal

from kernpool_mesh.messages import Command, CommandResult, Template
from kernpool_sandbox.kpinit.errors import KpInitError
from kernpool_sandbox.pipes import Bounded, Chunks
from kernpool_sandbox.runner import Execution, Process, collected, could_not_start, spec_of
from kernpool_sandbox.slot import Slot

RUN_DRAIN_S = 0.1
STREAM_DRAIN_S = 0.5
"""How long output is still read after a command's leader ended, while others hold its pipes."""

_killing: set["asyncio.Task[None]"] = set()
"""Kills of commands whose caller gave up; held so that they are not collected before they are done."""


async def run(slot: Slot, template: Template, command: Command, *, started_s: float) -> CommandResult:
    """Run a command to its end; a caller who is cancelled ends it. KpInitError."""
    execution = Execution(slot, started_s=started_s, timeout_s=command.timeout_s, drain_s=RUN_DRAIN_S)
    stdout = Bounded(command.output_bytes_max, execution.first_output)
    stderr = Bounded(command.output_bytes_max, execution.first_output)
    try:
        exec_id = await _start(slot, template, command, execution, stdout, stderr, stdin=bool(command.stdin))
    except OSError as error:
        return could_not_start(command, error)
    if execution.stdin is not None:
        execution.stdin.write_nowait(command.stdin)
        execution.stdin.end()
    try:
        result = await execution.over
    except asyncio.CancelledError:
        _kill_later(slot, exec_id)
        raise
    finally:
        execution.close()
        slot.touch()
    slot.forget_later(exec_id)
    return collected(result, stdout, stderr)


async def stream(slot: Slot, template: Template, command: Command, *, started_s: float, stdin: bool) -> Process:
    """Start a command; one that cannot start is a process that is over. KpInitError."""
    execution = Execution(slot, started_s=started_s, timeout_s=command.timeout_s, drain_s=STREAM_DRAIN_S)
    stdout, stderr = Chunks(), Chunks()
    with_stdin = stdin or bool(command.stdin)
    try:
        exec_id = await _start(slot, template, command, execution, stdout, stderr, stdin=with_stdin)
    except OSError as error:
        stdout.end()
        stderr.end()
        execution.over.set_result(could_not_start(command, error))
        return Process(slot.client, 0, execution, stdout, stderr)
    execution.over.add_done_callback(lambda _over: _streamed(slot, exec_id))
    if execution.stdin is not None:
        execution.stdin.write_nowait(command.stdin)
        if not stdin:
            execution.stdin.end()
    return Process(slot.client, exec_id, execution, stdout, stderr)


async def _start(
    slot: Slot,
    template: Template,
    command: Command,
    execution: Execution,
    stdout: Bounded | Chunks,
    stderr: Bounded | Chunks,
    *,
    stdin: bool,
) -> int:
    exec_id = slot.new_exec_id()
    slot.register(exec_id, execution)  # before the request: its exit may be told before its start
    slot.touch()
    try:
        started = await slot.client.exec(spec_of(command, exec_id, user=template.user, cwd=template.cwd, stdin=stdin))
    except asyncio.CancelledError:
        slot.unregister(exec_id)
        _kill_later(slot, exec_id)
        raise
    except BaseException:
        slot.unregister(exec_id)
        raise
    execution.connect(started, stdout, stderr)
    return exec_id


def _streamed(slot: Slot, exec_id: int) -> None:
    slot.touch()
    slot.forget_later(exec_id)


def _kill_later(slot: Slot, exec_id: int) -> None:
    task = asyncio.ensure_future(_kill(slot, exec_id))
    _killing.add(task)
    task.add_done_callback(_killing.discard)


async def _kill(slot: Slot, exec_id: int) -> None:
    try:
        await slot.client.signal(exec_id, signal.SIGKILL, tree=True)
        slot.forget_later(exec_id)
    except (KpInitError, OSError):
        return  # it, or its whole sandbox, is over
