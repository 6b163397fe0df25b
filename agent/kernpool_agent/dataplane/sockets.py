"""WebSockets of the data plane: one set of limits, no heartbeat of their own.

A client that takes no bytes for minutes (a pager, a stopped terminal) answers no ping either, and its command must not
be killed for it: dead peers are found by TCP keep-alive on the listener and by the link's own heartbeat.
"""

from typing import Final

from aiohttp import WSMsgType, web

from kernpool_agent.dataplane.answers import STARTED
from kernpool_agent.dataplane.problems import invalid

FRAME_BYTES_MAX: Final = 1 << 20
"""Largest frame taken from a client."""
_CLOSE_TIMEOUT_S: Final = 5.0


async def accept(request: web.Request) -> web.WebSocketResponse:
    """Upgrade the request; raises ProblemError (400) when it asks for no WebSocket."""
    websocket = web.WebSocketResponse(compress=False, max_msg_size=FRAME_BYTES_MAX, timeout=_CLOSE_TIMEOUT_S)
    if not websocket.can_prepare(request).ok:
        raise invalid("this address is a WebSocket: send an Upgrade request")
    request[STARTED] = True
    await websocket.prepare(request)
    return websocket


async def receive_text(websocket: web.WebSocketResponse, what: str, *, timeout_s: float) -> str:
    """Receive the text frame `what`; raises ProblemError (400) for another frame, TimeoutError when none comes."""
    message = await websocket.receive(timeout=timeout_s)
    if message.type is not WSMsgType.TEXT:
        raise invalid(f"expected a text frame with {what}")
    return str(message.data)
