"""The WebSocket below a link, on either side: made with the link's limits, bounded in time, dropped when it must go."""

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import aiohttp
from aiohttp import web

from kernpool_mesh.errors import LinkClosedError
from kernpool_mesh.messages import FRAME_BYTES_MAX

_log = logging.getLogger(__name__)

WebSocket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse
CLOSE_TIMEOUT_S: Final = 2.0
FRAMES_PER_MESSAGE: Final = 4
"""aiohttp drops the connection beyond so many times a frame; the link itself refuses, with a sentence, beyond one."""


def server_websocket(frame_bytes_max: int = FRAME_BYTES_MAX) -> web.WebSocketResponse:
    """The coordinator's side, for `/node/v1/link`: `prepare` it and give it to a Link."""
    bytes_max = FRAMES_PER_MESSAGE * frame_bytes_max
    return web.WebSocketResponse(timeout=CLOSE_TIMEOUT_S, compress=False, max_msg_size=bytes_max)


async def connect_websocket(
    session: aiohttp.ClientSession,
    url: str,
    *,
    ssl_context: ssl.SSLContext,
    server_hostname: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 15.0,
    frame_bytes_max: int = FRAME_BYTES_MAX,
) -> aiohttp.ClientWebSocketResponse:
    """Dial `url` (the coordinator's `/node/v1/link`) within `timeout_s`.

    Raises LinkClosedError with a sentence that names the address and what went wrong.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await session.ws_connect(
                url,
                ssl=ssl_context,
                server_hostname=server_hostname,
                headers=headers,
                compress=0,
                max_msg_size=FRAMES_PER_MESSAGE * frame_bytes_max,
                timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_TIMEOUT_S),
            )
    except TimeoutError:
        raise LinkClosedError(f"{url} did not answer within {timeout_s:.0f} s") from None
    except aiohttp.WSServerHandshakeError as error:
        raise LinkClosedError(f"{url} refused the link: HTTP {error.status} {error.message}") from None
    except (aiohttp.ClientError, OSError) as error:
        raise LinkClosedError(f"cannot reach {url}: {error}") from None


def bound_silence(websocket: WebSocket, seconds: float) -> None:
    """Let the kernel break the connection when nothing sent is acknowledged for so long: a host without power is
    silent, and TCP alone would go on retransmitting for a quarter of an hour."""
    with _socket_of(websocket) as connection:
        if connection is not None and connection.family in {socket.AF_INET, socket.AF_INET6}:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))


def drop_connection(websocket: WebSocket) -> None:
    """Break the connection at once: a close that waits for a silent peer would keep the descriptor for minutes."""
    with _socket_of(websocket) as connection:
        if connection is None:
            return
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            _log.debug("the connection was gone already: %s", error)


@contextmanager
def _socket_of(websocket: WebSocket) -> Iterator[socket.socket | None]:
    """A socket of our own on the same connection: what event loops lend is not the same on all of them."""
    lent = websocket.get_extra_info("socket")
    if lent is None or lent.fileno() < 0:
        yield None
        return
    with socket.socket(fileno=os.dup(lent.fileno())) as own:
        yield own
