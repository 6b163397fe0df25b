"""The coordinator process: opened step by step, serving until it is told to stop, closed in reverse."""

import asyncio
import contextlib
import gc
import json
import logging
import signal
import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import final

import kernpool
from kernpool_coordinator.config import Address, ConfigError, Settings
from kernpool_coordinator.core.config import CoreConfig
from kernpool_coordinator.core.control import ControlPlane
from kernpool_coordinator.http.connection import BoundedServer
from kernpool_coordinator.http.context import ApiContext
from kernpool_coordinator.http.dispatch import Dispatcher
from kernpool_coordinator.http.handlers import ROUTES
from kernpool_coordinator.http.limits import StreamLimits
from kernpool_coordinator.http.listen import Listener, bind, bound_address
from kernpool_coordinator.http.metrics import Metrics
from kernpool_coordinator.http.router import Router
from kernpool_coordinator.identity import (
    COORDINATOR_ID,
    ServerIdentity,
    api_token,
    is_wildcard,
    reachable_host,
    server_names,
)
from kernpool_coordinator.nodeside.arrivals import Arrivals
from kernpool_coordinator.nodeside.datapath import DataPath
from kernpool_coordinator.nodeside.issue import Issuer
from kernpool_coordinator.nodeside.link import LinkServer
from kernpool_coordinator.nodeside.server import NodeServer
from kernpool_coordinator.statedir import StateDir, write_private
from kernpool_coordinator.systemd import Notifier
from kernpool_tls.contexts import api_listener_context, node_listener_context, reload_certificate

log = logging.getLogger("kernpool.coordinator")


@final
class Daemon:
    """A running coordinator. `open` either gives one that serves, or raises and leaves nothing behind."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stack = contextlib.AsyncExitStack()
        """Undoes every step of `_start`, last first."""
        self.api_address: Address
        self.node_address: Address
        self.api: ApiContext
        self.links: LinkServer

    @classmethod
    async def open(cls, settings: Settings) -> "Daemon":
        """Take the state directory, bind, open the core, listen.

        Raises StateDirError, PortInUseError, ConfigError, IdentityError, CoordinatorError.
        """
        daemon = cls(settings)
        try:
            await daemon._start()
        except BaseException:
            await daemon._stack.aclose()
            raise
        return daemon

    @property
    def api_url(self) -> str:
        """Where clients on this machine call."""
        scheme = "http" if self._api_tls is None else "https"
        address = self.api_address
        host = "127.0.0.1" if is_wildcard(address) else address.host
        return f"{scheme}://{Address(host, address.port)}"

    @property
    def node_url(self) -> str:
        """Where agents dial."""
        address = self.node_address
        return self._settings.node_url or f"https://{Address(reachable_host(address), address.port)}"

    async def close(self) -> None:
        """Stop serving and close everything; jobs and sandboxes go on."""
        await self._stack.aclose()

    async def _start(self) -> None:
        settings = self._settings
        state = StateDir.hold(Path(settings.state_dir))
        self._stack.callback(state.close)
        api_socket = bind(Address.parse(settings.api_listen, key="api_listen"), key="api_listen")
        self._stack.callback(api_socket.close)
        node_socket = bind(Address.parse(settings.node_listen, key="node_listen"), key="node_listen")
        self._stack.callback(node_socket.close)
        self.api_address, self.node_address = bound_address(api_socket), bound_address(node_socket)
        names = server_names(settings, self.api_address, self.node_address)
        self._identity = ServerIdentity.open(state.path, names)
        self._renew_at_unix_s = self._identity.sign_server()
        self._node_tls = node_listener_context(self._identity.server_file, self._identity.authority.certificate_pem)
        self._api_tls = self._api_context()
        core = await self._open_core(state.path)
        await core.ensure_local_token(api_token(self._token_file(state.path)))
        self._assemble(core)
        await self._listen(Listener(node_socket, self._node_server, tls=self._node_tls), stopper=self._stop_links)
        await self._listen(Listener(api_socket, self._api_server, tls=self._api_tls), stopper=self._stop_answers)
        self._write_endpoint(state.path)
        self._keep_certificate_fresh()

    def _api_context(self) -> ssl.SSLContext | None:
        """TLS of the API listener: none on loopback, unless a certificate is configured."""
        settings = self._settings
        if bool(settings.api_cert_file) != bool(settings.api_key_file):
            raise ConfigError("`api_cert_file` and `api_key_file` go together: only one of them is set.")
        if settings.api_cert_file:
            return _configured_context(settings.api_cert_file, settings.api_key_file)
        if self.api_address.loopback:
            return None
        return api_listener_context(self._identity.server_file)

    async def _open_core(self, state_dir: Path) -> ControlPlane:
        identity = self._identity
        config = CoreConfig(
            state_dir=state_dir,
            key_file=identity.key_file,
            cluster_id=identity.cluster_id,
            coordinator_id=COORDINATOR_ID,
            version=kernpool.__version__,
            ca_pin=identity.authority.pin,
            node_url=self.node_url,
            **self._settings.core(),
        )
        core = await ControlPlane.open(config)
        self._stack.push_async_callback(core.close)
        return core

    def _assemble(self, core: ControlPlane) -> None:
        """Put the two servers together; no I/O."""
        settings, authority = self._settings, self._identity.authority
        arrivals = Arrivals()
        issuer = Issuer(core, authority, life_s=settings.certificate_life_s)
        self.links = LinkServer(
            core, issuer, arrivals, greeting_s=settings.greeting_s, stream_idle_s=settings.tunnel_idle_s
        )
        self.api = ApiContext(
            core=core,
            nodes=DataPath(core, arrivals, first_byte_s=settings.tunnel_first_byte_s),
            settings=settings,
            metrics=Metrics(core.statistics),
            streams=StreamLimits(settings.streams_max, settings.streams_per_token_max),
            ca_pem=authority.certificate_pem.decode(),
        )
        self._dispatcher = Dispatcher(self.api, Router(ROUTES))
        nodes = NodeServer(core, issuer, self.links, tries_per_min=settings.join_tries_per_min)
        self._api_server = BoundedServer(
            self._dispatcher.handle, connections_max=settings.connections_max, header_wait_s=settings.header_wait_s
        )
        self._node_server = BoundedServer(
            nodes.handle, connections_max=settings.node_connections_max, header_wait_s=settings.header_wait_s
        )

    async def _listen(self, listener: Listener, *, stopper: Callable[[Listener], Awaitable[None]]) -> None:
        """Accept on a listener; at the end run its stopper, then close it."""
        await listener.start()

        async def stop() -> None:
            listener.stop_accepting()
            await stopper(listener)

        self._stack.push_async_callback(stop)

    async def _stop_answers(self, listener: Listener) -> None:
        # Followers never end by themselves; the rest (bulk creates above all) gets its time, links still up.
        self.api.stop_endless()
        await listener.stop(self._settings.shutdown_s)
        await self._dispatcher.settle(self._settings.shutdown_s)

    async def _stop_links(self, listener: Listener) -> None:
        await self.links.stop("the coordinator is stopping; your work goes on")
        await listener.stop(1.0)

    def _token_file(self, state_dir: Path) -> Path:
        return Path(self._settings.token_file or state_dir / "admin-token")

    def _write_endpoint(self, state_dir: Path) -> None:
        """Tell local clients where the API is; gone again once nobody listens there."""
        path = Path(self._settings.endpoint_file or state_dir / "endpoint.json")
        text = json.dumps({"url": self.api_url, "ca_pin": self._identity.authority.pin}) + "\n"
        write_private(path, text)
        # Another program may get the port: clients must not offer it their token.
        self._stack.callback(path.unlink, missing_ok=True)

    def _keep_certificate_fresh(self) -> None:
        task = asyncio.create_task(self._renew_server_certificate(), name="renew server certificate")

        async def stop() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        self._stack.push_async_callback(stop)

    async def _renew_server_certificate(self) -> None:
        while True:
            # In slices: a machine that slept must not find its certificate expired.
            await asyncio.sleep(min(3600.0, max(1.0, self._renew_at_unix_s - time.time())))
            if time.time() >= self._renew_at_unix_s:
                self._renew_at_unix_s = self._identity.sign_server()
                for context in (self._node_tls, self._api_tls):
                    if context is not None and not (context is self._api_tls and self._settings.api_cert_file):
                        reload_certificate(context, self._identity.server_file)
                log.info("server certificate renewed")


def _configured_context(cert_file: str, key_file: str) -> ssl.SSLContext:
    """TLS 1.2 and up with the owner's own certificate: clients of the API may be browsers."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert_file, key_file)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"Cannot use `api_cert_file` {cert_file} with `api_key_file` {key_file}: {error}.") from error
    return context


async def serve(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT; a second one ends the process at once. Raises like Daemon.open."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, stop, number)
    notifier = Notifier.from_environment()
    daemon = await Daemon.open(settings)
    log.info("api on %s, nodes on %s", daemon.api_url, daemon.node_url)
    # What start-up made lives as long as the process: the collector need not walk it again.
    gc.collect()
    gc.freeze()
    try:
        notifier.ready(f"api on {daemon.api_url}, nodes on {daemon.node_url}")
        await stop.wait()
    finally:
        await notifier.stopping()
        log.info("stopping; jobs and sandboxes go on")
        await daemon.close()
        log.info("stopped")


def _on_signal(stop: asyncio.Event, number: int) -> None:
    if stop.is_set():
        raise SystemExit(128 + number)
    stop.set()
