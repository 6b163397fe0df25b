"""A command that runs in a sandbox, and a connection to a port of one, for asyncio."""

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self, final

import aiohttp

from kernpool.errors import CutError, UnreachableError
from kernpool.protocol import execution
from kernpool.protocol.execution import COMMAND_CUT, UNKNOWN_END, Chunk, read_message
from kernpool.protocol.websocket import Message, Opcode
from kernpool.results import CommandResult

KINDS = {aiohttp.WSMsgType.BINARY: Opcode.BINARY, aiohttp.WSMsgType.TEXT: Opcode.TEXT}


@final
class Process:
    """Iterate for its output; other tasks may write meanwhile. Leaving its `async with` lets it run on."""

    __slots__ = ("_socket", "result")

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self.result: CommandResult | None = None
        """Its end, once the output was read; without the output."""

    async def write(self, data: bytes) -> None:
        """Give it input; read its output in another task when it may be much. Raises CutError."""
        for frame in execution.stdin_frames(data):
            await self._send(frame)

    async def close_stdin(self) -> None:
        """End its input."""
        await self._send(execution.STDIN_END)

    async def signal(self, number: int) -> None:
        """Send it a signal, e.g. `signal.SIGTERM`."""
        if self.result is None:
            await self._socket.send_str(execution.signal_frame(number).decode())

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        """Give its output until its end. Raises CutError, ApiError."""
        while self.result is None:
            chunk = await self._next()
            if chunk is not None:
                yield chunk

    async def wait(self, timeout_s: float | None = None) -> CommandResult:
        """Wait for its end; output not read by then is dropped. Raises TimeoutError (it goes on), CutError."""
        async with asyncio.timeout(timeout_s):
            while self.result is None:
                await self._next()
        return self.result

    async def close(self) -> None:
        """Leave it; it runs on until its own end or the sandbox's."""
        await self._socket.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _send(self, frame: bytes) -> None:
        if self.result is None:
            try:
                await self._socket.send_bytes(frame)
            except (aiohttp.ClientError, ConnectionError) as error:
                raise CutError(f"{COMMAND_CUT}: {error}.") from error

    async def _next(self) -> Chunk | None:
        event = read_message(await receive(self._socket))
        if isinstance(event, Chunk):
            return event
        self.result = event.result
        await self._socket.close()
        return None


async def receive(socket: aiohttp.ClientWebSocketResponse) -> Message:
    """Wait for the next message. Raises CutError."""
    message = await socket.receive()
    kind = KINDS.get(message.type)
    if kind is not None:
        data = message.data
        return Message(kind, data.encode() if isinstance(data, str) else data)
    if message.type is aiohttp.WSMsgType.CLOSE:
        return Message(Opcode.CLOSE, (message.extra or "").encode(), message.data or 1005)
    raise CutError(f"{COMMAND_CUT}: {socket.exception() or 'it was closed'}.", hint=UNKNOWN_END)


@final
class PortConnection:
    """A TCP connection made inside the sandbox, carried here."""

    __slots__ = ("_is_over", "_socket")

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._is_over = False

    async def send(self, data: bytes) -> None:
        """Send all of it. Raises UnreachableError."""
        for start in range(0, len(data), execution.FRAME_BYTES):
            await self._send(data[start : start + execution.FRAME_BYTES])

    async def close_write(self) -> None:
        """Say that nothing more comes from here."""
        await self._send(b"")

    async def receive(self) -> bytes:
        """Give the next bytes; empty: the other side has ended. Raises UnreachableError."""
        if self._is_over:
            return b""
        message = await receive(self._socket)
        if message.kind is Opcode.BINARY and message.data:
            return message.data
        if message.kind is Opcode.CLOSE and message.code not in (1000, 1005):
            raise UnreachableError("The connection inside the sandbox broke.")
        self._is_over = True
        return b""

    async def close(self) -> None:
        """End both directions."""
        await self._socket.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _send(self, data: bytes) -> None:
        try:
            await self._socket.send_bytes(data)
        except (aiohttp.ClientError, ConnectionError) as error:
            raise UnreachableError(f"The connection to the port broke: {error}.") from error
