"""The two WebSockets that a link runs over, with the link's limits: answered here, dialled there."""

import asyncio
import ssl
from collections.abc import Mapping
from typing import Final

import aiohttp
from aiohttp import web

from kernpool_mesh.errors import LinkClosedError
from kernpool_mesh.messages import FRAME_BYTES_MAX

CLOSE_TIMEOUT_S: Final = 2.0
WEBSOCKET_MESSAGE_BYTES_MAX: Final = 4 * FRAME_BYTES_MAX
"""aiohttp drops the connection beyond this; the link itself refuses, with a sentence, beyond its frame size."""


def server_websocket() -> web.WebSocketResponse:
    """The coordinator's side, for `/node/v1/link`: `prepare` it and give it to a Link."""
    return web.WebSocketResponse(timeout=CLOSE_TIMEOUT_S, compress=False, max_msg_size=WEBSOCKET_MESSAGE_BYTES_MAX)


async def connect_websocket(
    session: aiohttp.ClientSession,
    url: str,
    *,
    ssl_context: ssl.SSLContext,
    server_hostname: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 15.0,
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
                max_msg_size=WEBSOCKET_MESSAGE_BYTES_MAX,
                timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_TIMEOUT_S),
            )
    except TimeoutError:
        raise LinkClosedError(f"{url} did not answer within {timeout_s:.0f} s") from None
    except aiohttp.WSServerHandshakeError as error:
        raise LinkClosedError(f"{url} refused the link: HTTP {error.status} {error.message}") from None
    except (aiohttp.ClientError, OSError) as error:
        raise LinkClosedError(f"cannot reach {url}: {error}") from None
