"""WebSockets of the data plane: one set of limits, no heartbeat of their own.

A client that takes no bytes for minutes (a pager, a stopped terminal) answers no ping either, and its command must not
be killed for it: dead peers are found by TCP keep-alive on the listener and by the link's own heartbeat.
"""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import WSCloseCode, WSMsgType, web

from kernpool_agent.dataplane.answers import STARTED
from kernpool_agent.dataplane.failures import problem_or_log
from kernpool_agent.dataplane.problems import ProblemError, invalid

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
    """Receive the text frame `what`; raises ProblemError for another or none, ConnectionResetError."""
    try:
        message = await websocket.receive(timeout=timeout_s)
    except TimeoutError:
        raise ProblemError(408, "timeout", f"no text frame with {what} came within {timeout_s:.0f} s") from None
    if message.type in (WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED):
        raise ConnectionResetError("the client closed the connection")
    if message.type is not WSMsgType.TEXT:
        raise invalid(f"expected a text frame with {what}")
    return str(message.data)


@contextlib.asynccontextmanager
async def telling_errors(websocket: web.WebSocketResponse) -> AsyncIterator[None]:
    """Tell an error of the body to the client as its last text frame, {"error": Problem}; a client gone is no error."""
    try:
        yield
    except ConnectionError:
        await websocket.close(code=WSCloseCode.GOING_AWAY)
    except Exception as error:  # noqa: BLE001 - the border: every error is told to the client once
        problem = problem_or_log(error, "a WebSocket exec failed")
        with contextlib.suppress(ConnectionError):
            await websocket.send_str(json.dumps({"error": problem.body()}))
        await websocket.close(code=WSCloseCode.INTERNAL_ERROR)
