"""Following a job in the foreground: why it waits, its log as it comes, its end as our exit status."""

import threading
import time
from collections.abc import Callable
from typing import Final, final

from kernpool.cli.terminal import Terminal
from kernpool.errors import KernpoolError
from kernpool.protocol import calls
from kernpool.results import JobInfo
from kernpool.sdk.client import Client
from kernpool.sdk.jobs import Job
from kernpool.units import show_duration

ENDED_OTHERWISE: Final = 100
"""The job failed without an exit status of its own (start_failed, lost, ...), as with SkyPilot."""
CANCELLED: Final = 103
DETACHED: Final = 130
QUIET_S: Final = 0.5
"""Silence after which a person is told what the job waits for."""
SECOND_CTRL_C_S: Final = 3.0
CANCEL_WAIT_S: Final = 60.0


def exit_status(job: JobInfo) -> int:
    """Give the exit status for a job that has ended."""
    if job.state == "succeeded":
        return 0
    if job.state == "cancelled":
        return CANCELLED
    return job.exit_code if job.exit_code and 0 < job.exit_code < 256 else ENDED_OTHERWISE


def ended_line(job: JobInfo) -> str:
    """Say how a job ended."""
    took = ""
    if job.began_unix_s is not None and job.ended_unix_s is not None:
        took = f" after {show_duration(job.ended_unix_s - job.began_unix_s)}"
    if job.state == "succeeded":
        return f"{job.id} {job.name}: succeeded{took}"
    code = job.exit_code
    exited = job.reason == "exited" and code is not None
    how = f"exited with {code}" if exited else job.detail or job.reason or "no reason known"
    if job.state == "cancelled":
        return f"{job.id} {job.name}: cancelled{took}"
    reason = f" ({job.reason})" if not exited and job.reason and job.detail else ""
    return f"{job.id} {job.name}: failed{reason}: {how}{took}"


def follow(
    job: Job,
    client: Client,
    terminal: Terminal,
    *,
    write: Callable[[bytes], None],
    index: int = 0,
    tail: int | None = None,
    quiet: bool = False,
) -> int:
    """Write a job's log until its end, also over restarts; gives the exit status. KeyboardInterrupt passes through."""

    def lost(count: int) -> None:
        terminal.note(f"({count} bytes of the log were rotated away before they could be read)")

    def restarted() -> None:
        terminal.note(f"({job.id} was started again)")

    with _Waiting(job, client, terminal, quiet=quiet) as waiting:
        for data in job.logs(index=index, tail=tail, on_lost=lost, on_restart=restarted):
            waiting.over()
            write(data)
    info = job.wait()
    if not quiet:
        terminal.note(ended_line(info))
    return exit_status(info)


@final
class _Waiting:
    """Says what a silent job waits for: on a terminal in a line that goes away, in a pipe once for each cause."""

    def __init__(self, job: Job, client: Client, terminal: Terminal, *, quiet: bool) -> None:
        self._job = job
        self._client = client
        self._terminal = terminal
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._is_over = quiet

    def __enter__(self) -> "_Waiting":
        if not self._is_over:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over()

    def over(self) -> None:
        """The log speaks: be silent for good."""
        if not self._is_over:
            self._is_over = True
            self._over.set()
            self._thread.join(0.2)
            self._terminal.status("")

    def _watch(self) -> None:
        said = ""
        pause_s = QUIET_S
        while not self._over.wait(pause_s):
            try:
                info = self._client.run(calls.job(self._job.id))
            except KernpoolError:
                return  # the log's own reader meets the same trouble and tells it
            if info.ended or self._over.is_set():
                return
            text = f"{info.id} {info.name}: {info.state}{f': {info.detail}' if info.detail else ''}"
            self._terminal.status(text)
            if not self._terminal.is_live and text != said and info.state == "pending":
                self._terminal.note(text)
            said, pause_s = text, min(pause_s * 1.5, 3.0)
            if info.state == "running" and not self._terminal.is_live:
                return


def detach_or_cancel(job: Job, terminal: Terminal) -> int:
    """Answer Ctrl-C: the job goes on, unless a second one follows at once."""
    try:
        terminal.note("")
        terminal.note(f"{job.id} goes on. Its log: kernpool logs {job.id}  To end it: kernpool cancel {job.id}")
        if not terminal.can_ask:
            return DETACHED
        terminal.status(f"Ctrl-C again within {SECOND_CTRL_C_S:.0f} s cancels it now.")
        time.sleep(SECOND_CTRL_C_S)
        terminal.status("")
    except KeyboardInterrupt:
        terminal.note(f"Cancelling {job.id} ...")
        job.cancel()
        info = job.wait(CANCEL_WAIT_S)
        terminal.note(ended_line(info))
        return exit_status(info)
    return DETACHED
