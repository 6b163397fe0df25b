"""Listening sockets: bound before anything is started, so that a port in use is one clear sentence and no mess."""

import asyncio
import errno
import socket
import ssl
from typing import final

from aiohttp.web import Server

from kernpool_coordinator.config import Address, ConfigError

TLS_HANDSHAKE_S = 10.0
BACKLOG = 1024


class PortInUseError(Exception):
    """Another process listens there; the message says where and what to do."""


def bind(address: Address, *, key: str) -> socket.socket:
    """A bound, not yet listening socket; port 0 takes any free one.

    Raises PortInUseError, or ConfigError (naming the setting `key`) for an address that this machine has not.
    """
    try:
        family, kind, proto, _, sockaddr = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ConfigError(f"`{key}` is {address}: {address.host} cannot be resolved ({error.strerror}).") from error
    sock = socket.socket(family, kind | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, proto)
    try:
        # A restart must not wait for the last connections' TIME_WAIT.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(sockaddr)
        # Listening is what finds another listener out on an address that SO_REUSEADDR let us bind.
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise _explained(error, address, key) from error
    return sock


def _explained(error: OSError, address: Address, key: str) -> Exception:
    match error.errno:
        case errno.EADDRINUSE:
            return PortInUseError(
                f"Another process already listens on {address}. "
                f"Stop it, or choose another port with --{key.replace('_', '-')} (0 takes any free one)."
            )
        case errno.EACCES:
            return ConfigError(f"`{key}` is {address}: ports below 1024 need root or CAP_NET_BIND_SERVICE.")
        case _:
            return ConfigError(f"`{key}` is {address}: cannot listen there ({error.strerror}).")


def bound_address(sock: socket.socket) -> Address:
    """The address with its real port."""
    host, port = sock.getsockname()[:2]
    return Address(host, port)


@final
class Listener:
    """A server on a bound socket."""

    def __init__(self, sock: socket.socket, server: Server, *, tls: ssl.SSLContext | None) -> None:
        if tls is None and not bound_address(sock).loopback:
            raise ConfigError(f"Refusing to serve {bound_address(sock)} without TLS: tokens would travel in clear.")
        self._sock = sock
        self._server = server
        self._tls = tls
        self._accepting: asyncio.Server | None = None

    @property
    def address(self) -> Address:
        """Where it listens."""
        return bound_address(self._sock)

    async def start(self) -> None:
        """Accept connections."""
        self._accepting = await asyncio.get_running_loop().create_server(
            self._server,
            sock=self._sock,
            ssl=self._tls,
            backlog=BACKLOG,
            ssl_handshake_timeout=TLS_HANDSHAKE_S if self._tls else None,
        )

    def stop_accepting(self) -> None:
        """Take no more connections; idle ones are closed."""
        if self._accepting is not None:
            self._accepting.close()
        self._server.pre_shutdown()

    async def stop(self, grace_s: float) -> None:
        """Let what runs finish within `grace_s`, then cut it."""
        await self._server.shutdown(grace_s)
