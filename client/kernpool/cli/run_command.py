"""A command in a sandbox in the foreground: its streams are ours, Ctrl-C is its Ctrl-C, its status is ours."""

import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Final

from kernpool.cli.terminal import Terminal
from kernpool.errors import KernpoolError
from kernpool.options import CommandOptions
from kernpool.sdk.process import Process
from kernpool.sdk.sandbox import Sandbox

ENDED_OTHERWISE: Final = 100
INTERRUPTS: Final = (signal.SIGINT, signal.SIGKILL)
"""What the first and the second Ctrl-C send; the third one leaves."""
READ_BYTES: Final = 64 * 1024


def run_command(
    sandbox: Sandbox, argv: Sequence[str], options: CommandOptions, terminal: Terminal, *, pass_stdin: bool
) -> int:
    """Run it to its end; gives the exit status."""
    with sandbox.start(argv, **options) as process:
        if pass_stdin:
            threading.Thread(target=_pump_stdin, args=(process,), daemon=True).start()
        else:
            process.close_stdin()
        _pump_output(process, terminal)
        result = process.wait()
    if result.reason != "exited":
        terminal.note(f"{argv[0]}: ended by {result.reason}{f': {result.detail}' if result.detail else ''}")
        return result.exit_code or ENDED_OTHERWISE
    return result.exit_code


def _pump_output(process: Process, terminal: Terminal) -> None:
    """Write its output until its end. Raises KeyboardInterrupt at the third Ctrl-C."""
    for number in (*INTERRUPTS, None):
        try:
            for chunk in process:
                (terminal.write if chunk.stream == "stdout" else terminal.write_error)(chunk.data)
        except KeyboardInterrupt:
            if number is None:
                raise
            process.signal(number)
        else:
            return


def _pump_stdin(process: Process) -> None:
    try:
        while data := os.read(sys.stdin.fileno(), READ_BYTES):
            process.write(data)
        process.close_stdin()
    except (KernpoolError, OSError):
        return  # the command or its connection is gone: whoever reads the output tells how
