"""The HTTP server of the data plane: one application, any number of doors that feed connections into it."""

import asyncio
from typing import Final, Self, final

from aiohttp import web

KEEPALIVE_S: Final = 75.0
"""An idle connection, or one that has not sent a whole request head, is closed after this."""
LINE_BYTES_MAX: Final = 16 * 1024
"""A request line: two percent-encoded paths of 4,095 bytes fit into it in any practical case."""
HEADER_BYTES_MAX: Final = 8190
HEADERS_MAX: Final = 64
CONNECTIONS_MAX: Final = 4096
_LINGER_S: Final = 2.0
"""How long the rest of a refused upload is read away before its connection is cut."""
_SHUTDOWN_S: Final = 2.0


@final
class DataServer:
    """Serves connections of any door; closing it cuts what is in flight (the clients' commands end with them)."""

    def __init__(self, runner: web.AppRunner) -> None:
        self._runner = runner

    @classmethod
    async def open(cls, app: web.Application) -> Self:
        """Start serving; the doors come later."""
        runner = web.AppRunner(
            app,
            handler_cancellation=True,
            auto_decompress=False,
            access_log=None,
            keepalive_timeout=KEEPALIVE_S,
            lingering_time=_LINGER_S,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
            max_headers=HEADERS_MAX,
            shutdown_timeout=_SHUTDOWN_S,
        )
        await runner.setup()
        return cls(runner)

    def protocol(self) -> asyncio.BaseProtocol:
        """Make the protocol of one new connection; beyond CONNECTIONS_MAX one that closes at once."""
        server = self._runner.server
        if server is None or len(server.connections) >= CONNECTIONS_MAX:
            return _Refusal()
        return server()

    async def close(self) -> None:
        """Cancel every handler and close every connection."""
        await self._runner.cleanup()


@final
class _Refusal(asyncio.Protocol):
    """A connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close it."""
        transport.close()
