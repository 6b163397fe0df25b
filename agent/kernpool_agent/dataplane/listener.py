"""The direct door: the agent's own TLS listener, under the node's certificate; who asks is said by tokens."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self, final

from kernpool_agent.dataplane.server import DataServer
from kernpool_agent.errors import AgentError
from kernpool_tls.contexts import reload_certificate

_BACKLOG: Final = 1024
_HANDSHAKE_S: Final = 10.0
_TLS_SHUTDOWN_S: Final = 2.0
# A client that vanished without a word is found within about a minute, also while it should acknowledge our bytes. A
# client that is merely slow still answers the kernel's probes.
_KEEPALIVE_IDLE_S: Final = 30
_KEEPALIVE_INTERVAL_S: Final = 10
_KEEPALIVE_PROBES: Final = 3
_UNACKNOWLEDGED_MS_MAX: Final = 60_000


@final
class ListenError(AgentError):
    """The data-plane listener cannot stand: the address is taken or not ours."""


@final
class Listener:
    """Accepts direct connections for a DataServer. `reload` takes a renewed certificate for new connections."""

    def __init__(
        self, servers: list[asyncio.Server], context: ssl.SSLContext, addresses: list[tuple[str, int]]
    ) -> None:
        self._servers = servers
        self._context = context
        self.addresses = addresses
        """(host, port) really listened on."""

    @classmethod
    async def open(cls, server: DataServer, context: ssl.SSLContext, hosts: list[str], port: int) -> Self:
        """Listen on each host (numeric) at `port`; 0: any free one, the same for all. Raises ListenError."""
        loop = asyncio.get_running_loop()
        opened: list[asyncio.Server] = []
        addresses: list[tuple[str, int]] = []
        with contextlib.ExitStack() as undo:
            for sock in _bound(hosts, port):
                opened.append(
                    await loop.create_server(
                        server.protocol,
                        sock=sock,
                        ssl=context,
                        backlog=_BACKLOG,
                        ssl_handshake_timeout=_HANDSHAKE_S,
                        ssl_shutdown_timeout=_TLS_SHUTDOWN_S,
                    )
                )
                undo.callback(opened[-1].close)
                addresses.append(sock.getsockname()[:2])
            undo.pop_all()
        return cls(opened, context, addresses)

    @property
    def port(self) -> int:
        """The port of all addresses."""
        return self.addresses[0][1]

    def reload(self, identity_file: Path) -> None:
        """Show the renewed certificate to new connections; raises IdentityFileError, and the old one stays."""
        reload_certificate(self._context, identity_file)

    async def close(self) -> None:
        """Take no new connections; those that stand belong to the DataServer."""
        for server in self._servers:
            server.close()


def _bound(hosts: list[str], port: int) -> Iterator[socket.socket]:
    for host in hosts:
        sock = _listening_socket(host, port)
        port = sock.getsockname()[1]
        yield sock


def _listening_socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        # Set here once: accepted sockets inherit them.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS_MAX)
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise ListenError(
            f"cannot listen on {host} port {port} for the data plane: {error.strerror or error}; "
            "choose another port or address in the agent's configuration"
        ) from None
    return sock
