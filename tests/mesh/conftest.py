"""Links over real mutual TLS on loopback, on asyncio's own event loop and on uvloop."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import aiohttp
import pytest
import uvloop
from aiohttp import web

from kernpool_mesh.link import Link, LinkConfig, LinkEnd, Side
from kernpool_mesh.messages import FRAME_BYTES_MAX, Message
from kernpool_mesh.websocket import connect_websocket, server_websocket
from kernpool_tls.authority import Authority
from kernpool_tls.contexts import client_context, node_listener_context
from kernpool_tls.keys import NodeKeys
from kernpool_tls.names import COORDINATOR_DNS_NAME
from kernpool_tls.sealing import Sealer


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run each test twice: agents may run either loop, and their transports differ in detail."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@dataclass
class Identities:
    """Files of a coordinator and of a node that trust each other."""

    ca_pem: bytes
    server_file: Path
    node_file: Path


@pytest.fixture(scope="session")
def identities(tmp_path_factory: pytest.TempPathFactory) -> Identities:
    directory = tmp_path_factory.mktemp("identities")
    authority = Authority.open(directory / "ca", Sealer.from_file(directory / "key"), "kp-test", time.time())
    authority.sign_server("c-1", [], directory / "server.pem", time.time())
    keys = NodeKeys(directory / "node")

    async def enrol() -> None:
        issued = authority.sign_node(await keys.new_request(), "n-abcdefghijkl", time.time())
        await keys.accept(issued.certificate_pem, authority.certificate_pem, authority.pin)

    asyncio.run(enrol())
    return Identities(authority.certificate_pem, directory / "server.pem", keys.identity_file)


@dataclass
class End:
    """One end of a link that runs, with what it received."""

    link: Link
    received: list[Message] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    running: "asyncio.Task[LinkEnd] | None" = None

    def take(self, message: Message) -> None:
        self.received.append(message)
        self.arrived.set()

    def run(self, handler: Callable[[Message], None] | None = None) -> "End":
        self.running = asyncio.create_task(self.link.run(handler or self.take))
        return self

    async def wait_for(self, count: int) -> list[Message]:
        """The first `count` messages, once they are there."""
        while len(self.received) < count:
            self.arrived.clear()
            await self.arrived.wait()
        return self.received

    async def ended(self) -> LinkEnd:
        assert self.running is not None
        return await self.running


@dataclass
class Links:
    """Both ends of one link."""

    coordinator: End
    agent: End


async def until(condition: Callable[[], bool], deadline_s: float = 5.0) -> None:
    """Let the loop turn until the condition holds; fails after the deadline."""
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110 - the things watched here announce nothing
            await asyncio.sleep(0)


class Until(Protocol):
    async def __call__(self, condition: Callable[[], bool], deadline_s: float = 5.0) -> None: ...


@pytest.fixture(name="until")
def until_fixture() -> Until:
    return until


class Dial:
    """Makes connected pairs; closes them all at the end."""

    def __init__(self, identities: Identities, stack: AsyncExitStack) -> None:
        self._identities = identities
        self._stack = stack

    async def websockets(
        self, frame_bytes_max: int = FRAME_BYTES_MAX
    ) -> tuple[web.WebSocketResponse, aiohttp.ClientWebSocketResponse]:
        """The coordinator's and the agent's WebSocket, connected, with no link on either."""
        server = await self._stack.enter_async_context(_server(self._identities, frame_bytes_max))
        session = await self._stack.enter_async_context(aiohttp.ClientSession())
        client = await connect_websocket(
            session,
            f"https://127.0.0.1:{server.port}/node/v1/link",
            ssl_context=client_context(self._identities.ca_pem, self._identities.node_file),
            server_hostname=COORDINATOR_DNS_NAME,
            frame_bytes_max=frame_bytes_max,
        )
        self._stack.push_async_callback(client.close)
        return await server.websocket, client

    async def raw(self, config: LinkConfig | None = None) -> tuple[End, aiohttp.ClientWebSocketResponse]:
        """A coordinator's link with a bare WebSocket on the other side, to say what no link would."""
        server, client = await self.websockets()
        # A bare WebSocket answers no goodbye unless the test reads it: do not wait long for one.
        config = replace(config or LinkConfig(), close_timeout_s=0.1)
        link = Link(server, Side.COORDINATOR, config=config, name="node n-raw")
        self._stack.push_async_callback(link.close, "test over")
        return End(link), client

    async def links(self, config: LinkConfig | None = None, *, run: bool = True) -> Links:
        """Both ends of a link, running unless said otherwise."""
        server, client = await self.websockets((config or LinkConfig()).frame_bytes_max)
        ends = Links(
            End(Link(server, Side.COORDINATOR, config=config, name="node n-test")),
            End(Link(client, Side.AGENT, config=config, name="coordinator")),
        )
        for end in (ends.coordinator, ends.agent):
            self._stack.push_async_callback(end.link.close, "test over")
            if run:
                end.run()
        return ends


@dataclass
class _Server:
    port: int
    websocket: "asyncio.Future[web.WebSocketResponse]"


def _server(identities: Identities, frame_bytes_max: int) -> AbstractAsyncContextManager[_Server]:
    @asynccontextmanager
    async def serve() -> AsyncIterator[_Server]:
        loop = asyncio.get_running_loop()
        accepted: asyncio.Future[web.WebSocketResponse] = loop.create_future()
        over = asyncio.Event()

        async def accept(request: web.Request) -> web.WebSocketResponse:
            websocket = server_websocket(frame_bytes_max)
            await websocket.prepare(request)
            accepted.set_result(websocket)
            await over.wait()
            return websocket

        app = web.Application()
        app.router.add_get("/node/v1/link", accept)
        runner = web.AppRunner(app, shutdown_timeout=1.0)
        await runner.setup()
        context = node_listener_context(identities.server_file, identities.ca_pem)
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        try:
            yield _Server(runner.addresses[0][1], accepted)
        finally:
            over.set()
            await runner.cleanup()

    return serve()


@pytest.fixture
async def dial(identities: Identities) -> AsyncIterator[Dial]:
    async with AsyncExitStack() as stack:
        yield Dial(identities, stack)
