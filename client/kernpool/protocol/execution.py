"""A command in a sandbox as it runs: the events of its streamed answer, whichever way they travel."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, final

from kernpool.errors import CutError, ProtocolError
from kernpool.protocol import fields as read
from kernpool.protocol.lines import read_object
from kernpool.protocol.websocket import Message, Opcode
from kernpool.results import CommandResult, read_problem

STDIN, STDOUT, STDERR = 0, 1, 2
STDIN_END: Final = bytes((STDIN,))
"""The frame that ends the input."""
COMMAND_CUT: Final = "The connection to the command broke"
UNKNOWN_END: Final = "Whether the command still runs is not known."
FRAME_BYTES: Final = 256 * 1024
NAMES: Final = {STDOUT: "stdout", STDERR: "stderr"}


@final
@dataclass(frozen=True, slots=True)
class Chunk:
    """Some output of a running command."""

    stream: str
    """stdout or stderr."""
    data: bytes


@final
@dataclass(frozen=True, slots=True)
class Exit:
    """The command is over."""

    result: CommandResult


def read_event(line: Mapping[str, Any]) -> Chunk | Exit:
    """Read one line of an NDJSON exec. Raises ProtocolError, or ApiError where the line tells of one."""
    if "exit" in line:
        return Exit(CommandResult.read(read.any_map(line, "exit")))
    if "error" in line:
        raise read_problem(read.any_map(line, "error"))
    stream = read.text(line, "stream")
    if stream not in ("stdout", "stderr"):
        raise read.wrong("stream", "stdout or stderr", stream)
    return Chunk(stream, read.octets(line, "data_b64"))


def read_binary(frame: bytes) -> Chunk:
    """Read a binary frame of a WebSocket exec."""
    if not frame or frame[0] not in NAMES:
        raise ProtocolError("the server sent a frame of output without its channel")
    return Chunk(NAMES[frame[0]], frame[1:])


def read_text(frame: bytes) -> Exit:
    """Read a text frame of a WebSocket exec: its end, or an ApiError that is raised."""
    document = read_object(frame)
    event = read_event(document)
    if isinstance(event, Chunk):
        raise ProtocolError("the server sent output as text")
    return event


def read_message(message: Message) -> Chunk | Exit:
    """Read what the node said over a WebSocket. Raises CutError for a close before the end, ApiError, ProtocolError."""
    match message.kind:
        case Opcode.BINARY:
            return read_binary(message.data)
        case Opcode.TEXT:
            return read_text(message.data)
        case Opcode.CLOSE:
            reason = message.data.decode("utf-8", "replace") or f"code {message.code}"
            raise CutError(f"The node closed the connection to the command: {reason}.", hint=UNKNOWN_END)
        case _:
            raise ProtocolError("the node sent what is no part of a command's output")


def stdin_frames(data: bytes) -> Iterator[bytes]:
    """Write input as frames of at most 256 KiB; the node takes 1 MiB."""
    for start in range(0, len(data), FRAME_BYTES):
        yield bytes((STDIN,)) + data[start : start + FRAME_BYTES]


def signal_frame(number: int) -> bytes:
    """Write the request for a signal."""
    return json.dumps({"signal": number}).encode()


@final
class OutputKeeper:
    """Collects a command's output up to a bound and counts what it drops."""

    __slots__ = ("_bytes_max", "_dropped", "_parts", "_sizes")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._parts: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        self._sizes = {"stdout": 0, "stderr": 0}
        self._dropped = {"stdout": 0, "stderr": 0}

    def take(self, chunk: Chunk) -> None:
        """Keep what fits."""
        room = self._bytes_max - self._sizes[chunk.stream]
        kept = chunk.data if len(chunk.data) <= room else chunk.data[:room]
        self._parts[chunk.stream].append(kept)
        self._sizes[chunk.stream] += len(kept)
        self._dropped[chunk.stream] += len(chunk.data) - len(kept)

    def result(self, end: CommandResult) -> CommandResult:
        """Give the end with the output laid into it."""
        return CommandResult(
            reason=end.reason,
            exit_code=end.exit_code,
            stdout=b"".join(self._parts["stdout"]),
            stderr=b"".join(self._parts["stderr"]),
            stdout_bytes_dropped=end.stdout_bytes_dropped + self._dropped["stdout"],
            stderr_bytes_dropped=end.stderr_bytes_dropped + self._dropped["stderr"],
            detail=end.detail,
            first_output_ms=end.first_output_ms,
        )
