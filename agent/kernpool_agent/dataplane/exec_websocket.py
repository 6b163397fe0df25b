"""GET /v1/sandboxes/{id}/exec as a WebSocket: one command with live stdin and signals.

The frames are described in docs/data-plane.md.
"""

import asyncio
import json
import signal
from typing import TYPE_CHECKING, Any, Final, final

from aiohttp import WSMessage, WSMsgType, web

from kernpool_agent.dataplane.bodies import command_from_json, result_to_json
from kernpool_agent.dataplane.problems import invalid
from kernpool_agent.dataplane.sockets import accept, receive_text, telling_errors
from kernpool_agent.dataplane.tasks import together, until_first
from kernpool_mesh.messages import CommandResult

if TYPE_CHECKING:
    from kernpool_agent.dataplane.plane import DataPlane
    from kernpool_sandbox.pipes import Chunks
    from kernpool_sandbox.runner import Process

STDIN, STDOUT, STDERR = b"\x00", b"\x01", b"\x02"
COMMAND_TIMEOUT_S: Final = 10.0
STDIN_BYTES_QUEUED_MAX: Final = 1 << 20
"""What a client may send ahead of a command that does not read; beyond that its frames wait."""


async def exec_websocket(plane: "DataPlane", request: web.Request, sandbox_id: str) -> web.StreamResponse:
    """Run the command of the first frame; the client gone, it is killed."""
    websocket = await accept(request)
    async with telling_errors(websocket):
        text = await receive_text(websocket, "the command as JSON", timeout_s=COMMAND_TIMEOUT_S)
        command = command_from_json(text)
        async with plane.foreground.run(sandbox_id, command, stdin=True) as process:
            stdin = _Stdin(process)
            await until_first(_listen(websocket, process, stdin), _tell_output(websocket, process))
            result = await process.wait()
        await websocket.send_str(_exit_text(result))
    await websocket.close()
    return websocket


async def _tell_output(websocket: web.WebSocketResponse, process: "Process") -> None:
    await together(_pump(websocket, STDOUT, process.stdout), _pump(websocket, STDERR, process.stderr))


async def _pump(websocket: web.WebSocketResponse, channel: bytes, chunks: "Chunks") -> None:
    while data := await chunks.read():
        await websocket.send_bytes(channel + data)


async def _listen(websocket: web.WebSocketResponse, process: "Process", stdin: "_Stdin") -> None:
    await together(stdin.run(), _receive(websocket, process, stdin))


async def _receive(websocket: web.WebSocketResponse, process: "Process", stdin: "_Stdin") -> None:
    """Take the client's frames; raises ConnectionResetError when it is gone."""
    while True:
        message: WSMessage = await websocket.receive()
        match message.type:
            case WSMsgType.BINARY:
                await stdin.take(_stdin_of(message.data))
            case WSMsgType.TEXT:
                await process.signal(_signal_of(message.data), tree=True)
            case _:
                raise ConnectionResetError("the client closed the connection")


@final
class _Stdin:
    """A bounded queue of input between the client's frames and a command that may never read."""

    def __init__(self, process: "Process") -> None:
        self._process = process
        self._queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._queued_bytes = 0
        self._room = asyncio.Event()
        self._room.set()

    async def take(self, data: bytes) -> None:
        """Queue input (empty: the end of it); waits while the queue is full."""
        self._queue.put_nowait(data)
        self._queued_bytes += len(data)
        if self._queued_bytes > STDIN_BYTES_QUEUED_MAX:
            self._room.clear()
            await self._room.wait()

    async def run(self) -> None:
        """Pass input on for as long as the command runs."""
        while data := await self._queue.get():
            await self._process.write_stdin(data)
            self._queued_bytes -= len(data)
            if self._queued_bytes <= STDIN_BYTES_QUEUED_MAX:
                self._room.set()
        self._process.close_stdin()


def _stdin_of(frame: bytes) -> bytes:
    if frame[:1] != STDIN:
        raise invalid("a binary frame from the client starts with the channel byte 00 (stdin)")
    return frame[1:]


def _signal_of(text: str) -> int:
    try:
        body: Any = json.loads(text)
        number = body["signal"] if isinstance(body, dict) and set(body) == {"signal"} else None
    except ValueError:
        number = None
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number < signal.NSIG:
        raise invalid(f'a text frame from the client is {{"signal": 1 to {signal.NSIG - 1}}}')
    return number


def _exit_text(result: CommandResult) -> str:
    return json.dumps({"exit": result_to_json(result)})
