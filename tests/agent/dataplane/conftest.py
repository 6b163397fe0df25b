"""A real node and its two doors: direct (TLS with data tokens) and tunnelled (streams of a real link, mutual TLS)."""

import asyncio
import os
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from kernpool_agent.ceiling import User
from kernpool_agent.dataplane.access import DoorAuthorizer
from kernpool_agent.dataplane.admission import AdmissionLimits
from kernpool_agent.dataplane.listener import Listener
from kernpool_agent.dataplane.plane import make_app
from kernpool_agent.dataplane.server import DataServer
from kernpool_agent.dataplane.streams import StreamDoor
from kernpool_agent.jobs.runtime import JobConfig, JobRuntime
from kernpool_mesh import datatoken
from kernpool_mesh.connector import LinkConnector
from kernpool_mesh.link import Link, Side
from kernpool_mesh.messages import AttemptStatus, Limits, StartAttempt, Template
from kernpool_mesh.websocket import connect_websocket, server_websocket
from kernpool_sandbox.config import RuntimeConfig
from kernpool_sandbox.runtime import SandboxRuntime
from kernpool_tls.authority import Authority
from kernpool_tls.contexts import client_context, data_plane_listener_context, node_listener_context
from kernpool_tls.names import COORDINATOR_DNS_NAME, node_dns_name
from kernpool_tls.sealing import Sealer

NODE_ID = "n-abcdefghijkl"
DATA_KEY = b"k" * datatoken.KEY_BYTES
KEY_ID = 3
ACTOR = "user/ada"


# --- trust ---


@dataclass
class Trust:
    """One authority with the files that a coordinator and a node hold."""

    authority: Authority
    server_file: Path
    identity_file: Path

    def issue(self) -> None:
        """Give the node a fresh certificate."""
        key = ec.generate_private_key(ec.SECP256R1())
        request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
        issued = self.authority.sign_node(request.public_bytes(Encoding.PEM), NODE_ID, time.time())
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        self.identity_file.write_bytes(pem + issued.certificate_pem + self.authority.certificate_pem)


@pytest.fixture(scope="package")
def trust(tmp_path_factory: pytest.TempPathFactory) -> Trust:
    directory = tmp_path_factory.mktemp("trust")
    authority = Authority.open(directory / "ca", Sealer.from_file(directory / "key"), "kp-test", time.time())
    server_file = directory / "server.pem"
    authority.sign_server("c-1", ["localhost", "127.0.0.1"], server_file, time.time())
    made = Trust(authority, server_file, directory / "node.pem")
    made.issue()
    return made


# --- the node ---


@dataclass
class Node:
    """Sandboxes and jobs of this machine behind a data-plane server."""

    runtime: SandboxRuntime
    jobs: JobRuntime
    server: DataServer
    trust: Trust
    home: Path
    """Of the jobs' user."""
    now_unix_s: float = field(default_factory=time.time)
    """The coordinator's time, as the node believes it."""
    keys: dict[int, bytes] = field(default_factory=lambda: {KEY_ID: DATA_KEY})
    updates: "asyncio.Queue[AttemptStatus]" = field(default_factory=asyncio.Queue)
    sandboxes: int = 0

    async def sandbox(self, **options: Any) -> str:
        """Make a sandbox of this machine's own image and return its id."""
        self.sandboxes += 1
        sandbox_id = f"sb-{os.getpid():x}{self.sandboxes:08d}".ljust(19, "a")[:19]
        template = options.pop("template", Template(limits=Limits(memory_mib=256, disk_mib=256, pids=2000)))
        await self.runtime.create(sandbox_id, template, ttl_s=options.pop("ttl_s", 1200.0), **options)
        return sandbox_id

    async def job(self, run: str, **options: Any) -> str:
        """Start a job and return its id."""
        self.sandboxes += 1
        job_id = f"j-{self.sandboxes}"
        spec = StartAttempt(0, job_id, 0, 1, "test", options.pop("setup", ""), run, {}, Limits(), **options)
        await self.jobs.start(spec)
        return job_id

    @property
    def second_user(self) -> str:
        """Give a user of a sandbox that is not root; where only one id is mapped, root again."""
        return "65534" if self.runtime.isolation.uids == "range" else "0"

    def token(self, object_: str, verbs: Sequence[str], *, expires_in_s: int = 60, node_id: str = NODE_ID) -> str:
        now = int(self.now_unix_s)
        claims = datatoken.Claims(node_id, object_, tuple(verbs), now + expires_in_s, ACTOR)
        return datatoken.sign(DATA_KEY, KEY_ID, claims, now)


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def node(tmp_path_factory: pytest.TempPathFactory, trust: Trust) -> AsyncIterator[Node]:
    state_dir, home = tmp_path_factory.mktemp("n"), tmp_path_factory.mktemp("home")
    own_id = os.geteuid()
    async with AsyncExitStack() as stack:
        runtime = await SandboxRuntime.open(
            RuntimeConfig(state_dir, job_ids=((own_id, own_id),)), on_update=lambda _statuses: None
        )
        stack.push_async_callback(runtime.shutdown)
        if not runtime.isolation.isolation:
            pytest.skip(f"no sandboxes here: {'; '.join(runtime.isolation.problems)}")
        updates: asyncio.Queue[AttemptStatus] = asyncio.Queue()
        jobs = await JobRuntime.open(
            JobConfig(state_dir=state_dir, user=User("me", own_id, os.getegid(), tuple(os.getgroups()), str(home))),
            runtime.living_spawner,
            runtime.cgroups,
            on_update=updates.put_nowait,
        )
        stack.push_async_callback(jobs.close)
        made = Node(runtime, jobs, None, trust, home, updates=updates)  # type: ignore[arg-type]
        authorizer = DoorAuthorizer(NODE_ID, lambda: made.keys, lambda: made.now_unix_s)
        app = make_app(
            runtime,
            jobs,
            authorizer,
            limits=AdmissionLimits(requests_max=600, per_object_max=300),
            metrics_text=lambda: b"kp_up 1\n",
            node_id=NODE_ID,
        )
        made.server = await DataServer.open(app)
        stack.push_async_callback(made.server.close)
        yield made


# --- the doors ---


class Door:
    """One way to the node: requests for one object with some verbs."""

    name: str

    def request(self, method: str, path: str, object_: str, verbs: Sequence[str], **options: Any) -> Any:
        """An aiohttp request context manager."""
        raise NotImplementedError

    def websocket(self, path: str, object_: str, verbs: Sequence[str], **options: Any) -> Any:
        """An aiohttp WebSocket context manager."""
        raise NotImplementedError


class DirectDoor(Door):
    """Straight to the node's own TLS listener with a data token."""

    name = "direct"

    def __init__(self, node: Node, session: aiohttp.ClientSession, port: int, tls: ssl.SSLContext) -> None:
        self._node = node
        self.session = session
        self.port = port
        self.tls = tls

    def options(self, object_: str, verbs: Sequence[str], options: dict[str, Any]) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self._node.token(object_, verbs)}", **options.pop("headers", {})}
        return {"ssl": self.tls, "server_hostname": node_dns_name(NODE_ID), "headers": headers, **options}

    def url(self, path: str) -> str:
        return f"https://127.0.0.1:{self.port}{path}"

    def request(self, method: str, path: str, object_: str, verbs: Sequence[str], **options: Any) -> Any:
        return self.session.request(method, self.url(path), **self.options(object_, verbs, options))

    def websocket(self, path: str, object_: str, verbs: Sequence[str], **options: Any) -> Any:
        return self.session.ws_connect(self.url(path), **self.options(object_, verbs, options))


class LinkDoor(Door):
    """Through the coordinator's end of the node's link."""

    name = "link"

    def __init__(self, session: aiohttp.ClientSession, connector: LinkConnector, link: Link) -> None:
        self.session = session
        self.connector = connector
        self.link = link

    def request(self, method: str, path: str, object_: str, verbs: Sequence[str], **options: Any) -> Any:
        return self.session.request(method, self.connector.url(ACTOR, object_, verbs, path), **options)

    def websocket(self, path: str, object_: str, verbs: Sequence[str], **options: Any) -> Any:
        return self.session.ws_connect(self.connector.url(ACTOR, object_, verbs, path), **options)


@asynccontextmanager
async def direct_door(node: Node) -> AsyncIterator[DirectDoor]:
    context = data_plane_listener_context(node.trust.identity_file)
    listener = await Listener.open(node.server, context, ["127.0.0.1"], 0)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield DirectDoor(node, session, listener.port, client_context(node.trust.authority.certificate_pem))
    await listener.close()


@asynccontextmanager
async def link_door(node: Node) -> AsyncIterator[LinkDoor]:
    """Both ends of a link over a real mutual-TLS WebSocket; the coordinator's end opens the streams."""
    accepted: asyncio.Future[Link] = asyncio.get_running_loop().create_future()

    async def serve_link(request: web.Request) -> web.WebSocketResponse:
        websocket = server_websocket()
        await websocket.prepare(request)
        link = Link(websocket, Side.COORDINATOR)
        accepted.set_result(link)
        await link.run(lambda _message: None)
        return websocket

    app = web.Application()
    app.router.add_get("/node/v1/link", serve_link)
    async with AsyncExitStack() as stack:
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        ca_pem = node.trust.authority.certificate_pem
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=node_listener_context(node.trust.server_file, ca_pem))
        await site.start()
        port = runner.addresses[0][1]
        dialling = await stack.enter_async_context(aiohttp.ClientSession())
        websocket = await connect_websocket(
            dialling,
            f"https://127.0.0.1:{port}/node/v1/link",
            ssl_context=client_context(ca_pem, node.trust.identity_file),
            server_hostname=COORDINATOR_DNS_NAME,
        )
        agent_end = Link(websocket, Side.AGENT)
        agent_end.on_stream(StreamDoor(node.server).serve)
        running = asyncio.create_task(agent_end.run(lambda _message: None))
        link = await accepted
        connector = LinkConnector(link)
        async with aiohttp.ClientSession(connector=connector) as session:
            yield LinkDoor(session, connector, link)
        await agent_end.close()
        await running


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def direct(node: Node) -> AsyncIterator[DirectDoor]:
    async with direct_door(node) as door:
        yield door


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def tunnelled(node: Node) -> AsyncIterator[LinkDoor]:
    async with link_door(node) as door:
        yield door


@pytest.fixture(params=["direct", "link"])
def door(request: pytest.FixtureRequest, direct: DirectDoor, tunnelled: LinkDoor) -> Door:
    return direct if request.param == "direct" else tunnelled
