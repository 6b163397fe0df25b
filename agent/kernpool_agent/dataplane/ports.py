"""GET /v1/sandboxes/{id}/ports/{port}: a WebSocket that carries one TCP connection made inside the sandbox.

Binary frames are the bytes, both ways. An empty binary frame is the end of that direction (a half-close). The
WebSocket closes when both directions are over, or with 1011 when the connection broke.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from aiohttp import WSCloseCode, WSMsgType, web

from kernpool_agent.dataplane.problems import ProblemError, invalid
from kernpool_agent.dataplane.sockets import accept
from kernpool_agent.dataplane.tasks import together

if TYPE_CHECKING:
    from kernpool_agent.dataplane.plane import DataPlane

_READ_BYTES: Final = 64 * 1024
CONNECT_TIMEOUT_S: Final = 10.0


async def open_port(plane: "DataPlane", request: web.Request, sandbox_id: str) -> web.StreamResponse:
    """Connect first (a refusal is an HTTP error), then upgrade and carry bytes until both directions are over."""
    port = _port(request.match_info["port"])
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            sock = await plane.runtime.connect(sandbox_id, port)
    except (OSError, TimeoutError) as error:
        what = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise ProblemError(
            502, "unreachable", f"port {port} of {sandbox_id}: {what}", "is the server up and bound to 127.0.0.1?"
        ) from None
    reader, writer = await asyncio.open_connection(sock=sock, limit=_READ_BYTES)
    try:
        websocket = await accept(request)
        await _carry(websocket, reader, writer)
    finally:
        writer.transport.abort()
    return websocket


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65536):
        raise invalid(f"a port is a number from 1 to 65535, not {text[:20]!r}")
    return int(text)


async def _carry(websocket: web.WebSocketResponse, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        await together(_inward(websocket, writer), _outward(websocket, reader))
    except OSError:
        await websocket.close(code=WSCloseCode.INTERNAL_ERROR)
    else:
        await websocket.close()


async def _inward(websocket: web.WebSocketResponse, writer: asyncio.StreamWriter) -> None:
    """Client to sandbox. Raises ConnectionError when the client leaves without ending its direction."""
    while True:
        message = await websocket.receive()
        if message.type is not WSMsgType.BINARY:
            raise ConnectionResetError("the client closed the connection")
        if not message.data:
            writer.write_eof()
            return
        writer.write(message.data)
        await writer.drain()


async def _outward(websocket: web.WebSocketResponse, reader: asyncio.StreamReader) -> None:
    """Sandbox to client."""
    while data := await reader.read(_READ_BYTES):
        await websocket.send_bytes(data)
    await websocket.send_bytes(b"")
