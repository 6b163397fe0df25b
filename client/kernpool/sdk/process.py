"""A command that runs in a sandbox: input to it, output from it while it runs, and its end."""

import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self, final

from kernpool.errors import CutError, UnreachableError
from kernpool.protocol import execution
from kernpool.protocol.execution import COMMAND_CUT, UNKNOWN_END, Chunk, read_message
from kernpool.protocol.retries import TransportError
from kernpool.protocol.websocket import Opcode
from kernpool.results import CommandResult

if TYPE_CHECKING:
    from kernpool.sdk.websocket import WebSocket


@final
class Process:
    """Iterate for its output; one thread may write while another iterates. Leaving its `with` lets it run on."""

    __slots__ = ("_socket", "result")

    def __init__(self, socket: "WebSocket") -> None:
        self._socket = socket
        self.result: CommandResult | None = None
        """Its end, once the output was read; without the output."""

    def write(self, data: bytes) -> None:
        """Give it input. Raises CutError; what it does not read any more is dropped."""
        for frame in execution.stdin_frames(data):
            if self.result is None:
                self._send(Opcode.BINARY, frame)

    def close_stdin(self) -> None:
        """End its input."""
        if self.result is None:
            self._send(Opcode.BINARY, execution.STDIN_END)

    def signal(self, number: int) -> None:
        """Send it a signal, e.g. `signal.SIGTERM`."""
        if self.result is None:
            self._send(Opcode.TEXT, execution.signal_frame(number))

    def __iter__(self) -> Iterator[Chunk]:
        """Give its output until its end. Raises CutError, ApiError."""
        while self.result is None:
            chunk = self._next(None)
            if chunk is not None:
                yield chunk

    def wait(self, timeout_s: float | None = None) -> CommandResult:
        """Wait for its end; output not read by then is dropped. Raises TimeoutError (it goes on), CutError."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while self.result is None:
            self._next(deadline_s)
        return self.result

    def close(self) -> None:
        """Leave it; it runs on until its own end or the sandbox's."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, kind: Opcode, data: bytes) -> None:
        try:
            self._socket.send(kind, data)
        except TransportError as error:
            raise CutError(f"{COMMAND_CUT}: {error}.") from error

    def _next(self, deadline_s: float | None) -> Chunk | None:
        """Give the next output; None: it has ended. Raises TimeoutError at the deadline."""
        try:
            message = self._socket.receive(deadline_s)
        except TransportError as error:
            if error.timed_out:
                raise TimeoutError("the command still runs") from error
            raise CutError(f"{COMMAND_CUT}: {error}.", hint=UNKNOWN_END) from error
        event = read_message(message)
        if isinstance(event, Chunk):
            return event
        self.result = event.result
        self._socket.close()
        return None


@final
class PortConnection:
    """A TCP connection made inside the sandbox, carried here."""

    __slots__ = ("_is_over", "_socket")

    def __init__(self, socket: "WebSocket") -> None:
        self._socket = socket
        self._is_over = False

    def send(self, data: bytes) -> None:
        """Send all of it. Raises UnreachableError."""
        for start in range(0, len(data), execution.FRAME_BYTES):
            self._send(data[start : start + execution.FRAME_BYTES])

    def close_write(self) -> None:
        """Say that nothing more comes from here."""
        self._send(b"")

    def receive(self, timeout_s: float | None = None) -> bytes:
        """Give the next bytes; empty: the other side has ended. Raises TimeoutError, UnreachableError."""
        if self._is_over:
            return b""
        try:
            message = self._socket.receive(None if timeout_s is None else time.monotonic() + timeout_s)
        except TransportError as error:
            if error.timed_out:
                raise TimeoutError("nothing came from the port") from error
            raise UnreachableError(f"The connection to the port broke: {error}.") from error
        if message.kind is Opcode.BINARY and message.data:
            return message.data
        if message.kind is Opcode.CLOSE and message.code not in (1000, 1005):
            raise UnreachableError("The connection inside the sandbox broke.")
        self._is_over = True
        return b""

    def close(self) -> None:
        """End both directions."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, data: bytes) -> None:
        try:
            self._socket.send(Opcode.BINARY, data)
        except TransportError as error:
            raise UnreachableError(f"The connection to the port broke: {error}.") from error
