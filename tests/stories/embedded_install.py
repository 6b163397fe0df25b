"""A whole embedded install for each story: coordinator, agent and spawner, started as a person starts them."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernpool.sdk import Client

HOUSE = Path(__file__).parents[2]
ROOMS = ["agent", "client", "coordinator", "mesh", "sandbox", "tls"]
DEADLINE_S = 60.0


class Install:
    """One KERNPOOL_HOME and the commands typed in it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        paths = os.pathsep.join(str(HOUSE / room) for room in ROOMS)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("KERNPOOL_", "COVERAGE"))}
        self.env = {**kept, "KERNPOOL_HOME": str(home), "PYTHONPATH": paths}

    def kernpool(self, *words: str, code: int | None = 0, timeout_s: float = 90, stdin: str = "") -> str:
        """Type a command; gives what it printed. `code`: the exit status it must have (None: any)."""
        done = self.run(*words, timeout_s=timeout_s, stdin=stdin)
        if code is not None:
            assert done.returncode == code, f"kernpool {' '.join(words)}\n{done.stdout}{done.stderr}\n{self.logs()}"
        return done.stdout

    def run(self, *words: str, timeout_s: float = 90, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Type a command; gives its output and exit status."""
        command = [sys.executable, "-m", "kernpool", *words]
        return subprocess.run(
            command, env=self.env, capture_output=True, text=True, timeout=timeout_s, check=False, input=stdin
        )

    def start(self) -> None:
        """Start what is missing; on free ports at the first time, on the same ones after that."""
        first = not (self.home / "settings.json").exists()
        self.kernpool("api", "start", *(["--port", "0", "--node-listen", "127.0.0.1:0"] if first else []))

    def client(self) -> Client:
        """Connect the SDK to it."""
        endpoint = json.loads((self.home / "endpoint.json").read_text())
        return Client(endpoint["url"], (self.home / "token").read_text().strip())

    def pid(self, daemon: str) -> int:
        """Give the pid of `agent` or `coordinator`."""
        return int((self.home / daemon / f"{daemon}.pid").read_text().split()[0])

    def kill(self, *daemons: str) -> None:
        """SIGKILL daemons and wait until they are gone."""
        for daemon in daemons:
            descriptor = os.pidfd_open(self.pid(daemon))
            try:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                assert select.select([descriptor], [], [], 10)[0], f"{daemon} outlives SIGKILL"
            finally:
                os.close(descriptor)

    def logs(self) -> str:
        """Give the end of both daemons' logs, for a failure's message."""
        texts = []
        for daemon in ("coordinator", "agent"):
            with contextlib.suppress(FileNotFoundError):
                text = (self.home / daemon / f"{daemon}.log").read_text(errors="replace")
                texts.append(f"--- {daemon}\n{text[-3000:]}")
        return "\n".join(texts)


def eventually(probe: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """Ask again until the answer is true; the deadline is far beyond what a busy machine needs."""
    pause = threading.Event()
    until = time.monotonic() + deadline_s
    while True:
        answer = probe()
        if answer:
            return answer
        assert time.monotonic() < until, f"not within {deadline_s:.0f} s: {what}"
        pause.wait(0.05)


def processes_of(home: Path) -> list[str]:
    """List the processes that belong to an install: their command line or environment names its directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            words = (entry / "cmdline").read_bytes()
            if state != "Z" and str(home).encode() in words:
                found.append(f"{entry.name} {words.replace(bytes(1), b' ').decode(errors='replace')}")
    return found


def mounts_of(home: Path) -> list[str]:
    """List the mounts below an install's directory that are seen from here."""
    return [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(home) in line]
