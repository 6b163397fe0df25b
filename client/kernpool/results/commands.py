"""What came of a command, and why a request was refused."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from kernpool.errors import ApiError, CommandFailedError, api_error
from kernpool.protocol import fields as read

Object = Mapping[str, Any]


@final
@dataclass(frozen=True, slots=True)
class CommandResult:
    """What came of one command."""

    reason: str
    """exited, timeout, oom, killed, ...: the closed list of end reasons."""
    exit_code: int
    """The command's exit code, or 128 + signal."""
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_bytes_dropped: int = 0
    """Bytes beyond output_bytes_max that were not kept."""
    stderr_bytes_dropped: int = 0
    detail: str = ""
    first_output_ms: float | None = None
    """From the node's receipt of the request to the first byte of output."""

    @classmethod
    def read(cls, data: Object) -> "CommandResult":
        """Read the JSON form."""
        return cls(
            reason=read.name(data, "reason"),
            exit_code=read.whole(data, "exit_code"),
            stdout=read.octets(data, "stdout_b64"),
            stderr=read.octets(data, "stderr_b64"),
            stdout_bytes_dropped=read.whole(data, "stdout_bytes_dropped"),
            stderr_bytes_dropped=read.whole(data, "stderr_bytes_dropped"),
            detail=read.text(data, "detail"),
            first_output_ms=read.maybe_number(data, "first_output_ms"),
        )

    @property
    def ok(self) -> bool:
        """It exited by itself with 0."""
        return self.reason == "exited" and self.exit_code == 0

    @property
    def stdout_text(self) -> str:
        """Its output as text; what is not UTF-8 is replaced."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def stderr_text(self) -> str:
        """Its error output as text; what is not UTF-8 is replaced."""
        return self.stderr.decode("utf-8", "replace")

    def check(self, argv: tuple[str, ...] = ()) -> "CommandResult":
        """Raise CommandFailedError unless it exited with 0."""
        if not self.ok:
            raise CommandFailedError(self, argv)
        return self


def read_problem(data: Object, status: int = 0) -> ApiError:
    """Read an error answer."""
    return api_error(
        read.text(data, "code", "internal"),
        read.text(data, "message") or "the server gave no reason",
        hint=read.text(data, "hint"),
        status=status,
        details=[dict(item) for item in read.records(data, "details", dict)],
    )
