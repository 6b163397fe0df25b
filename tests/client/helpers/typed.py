"""Commands typed in a child process, piped or on a terminal of their own."""

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transcripts import environment

DEADLINE_S = 30.0


class Shell:
    """The environment of a person, and the commands typed in it."""

    def __init__(self, directory: Path, **given: str) -> None:
        self.directory = directory
        self.env = environment(directory, **given)

    def run(
        self, *words: str, stdin: str | bytes | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Type a command whose output is piped."""
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL}
        if stdin is not None:
            options = {"input": stdin.encode() if isinstance(stdin, str) else stdin}
        done = subprocess.run(
            [sys.executable, "-m", "kernpool", *words], cwd=self.directory, env={**self.env, **(env or {})},
            capture_output=True, timeout=50, check=False, **options,
        )  # fmt: skip
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    def popen(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """Start a command whose output is piped."""
        return subprocess.Popen(
            [sys.executable, "-m", "kernpool", *words], cwd=self.directory, env=self.env, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
        )  # fmt: skip

    def tty(self, *words: str) -> "Tty":
        """Start a command on a terminal."""
        return Tty([sys.executable, "-m", "kernpool", *words], self.directory, {**self.env, "TERM": "xterm-256color"})


class Tty:
    """A child on a pseudo terminal."""

    def __init__(self, argv: list[str], directory: Path, env: Mapping[str, str]) -> None:
        self.output = ""
        self.pid, self._fd = pty.fork()
        if not self.pid:
            os.chdir(directory)
            os.execvpe(argv[0], argv, env)

    def type(self, text: str) -> None:
        """Type."""
        os.write(self._fd, text.encode())

    def until(self, text: str) -> str:
        """Read until this was shown; gives all that was shown."""
        deadline_s = time.monotonic() + DEADLINE_S
        while text not in self.output:
            assert time.monotonic() < deadline_s, f"{text!r} was not shown, but: {self.output!r}"
            assert self._read(deadline_s), f"it ended without {text!r}: {self.output!r}"
        return self.output

    def end(self) -> int:
        """Read to its end; gives its exit status."""
        deadline_s = time.monotonic() + DEADLINE_S
        while self._read(deadline_s):
            assert time.monotonic() < deadline_s, f"it does not end: {self.output!r}"
        _, status = os.waitpid(self.pid, 0)
        os.close(self._fd)
        return os.waitstatus_to_exitcode(status)

    def _read(self, deadline_s: float) -> bool:
        ready, _, _ = select.select([self._fd], [], [], max(0.0, deadline_s - time.monotonic()))
        if not ready:
            return True
        try:
            data = os.read(self._fd, 65536)
        except OSError:
            return False
        self.output += data.decode("utf-8", "replace")
        return bool(data)
