"""A small coordinator for the agent's tests: real authority, join tokens, mTLS and link, but no control plane."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from aiohttp import web

from kernpool_mesh import messages as m
from kernpool_mesh.link import Link, Side
from kernpool_mesh.websocket import server_websocket
from kernpool_tls import jointoken
from kernpool_tls.authority import Authority
from kernpool_tls.contexts import node_listener_context
from kernpool_tls.errors import ClockSkewError, IdentityError
from kernpool_tls.jointoken import JoinTokenRecord
from kernpool_tls.names import Role
from kernpool_tls.peer import Revocations, require_peer
from kernpool_tls.renewal import NonceBook, check_renewal
from kernpool_tls.sealing import Sealer
from kernpool_tls.times import check_clock_skew

CLUSTER = "kp-test"
DEADLINE_S = 30.0
T = TypeVar("T", bound=m.Message)


@dataclass
class Standin:
    """One coordinator; tests turn its knobs and read what agents told it."""

    directory: Path
    authority: Authority
    port: int = 0
    heartbeat_interval_s: float = 0.2
    certificate_life_s: float = 86400.0
    clock_ahead_s: float = 0.0
    """The coordinator's clock against the machine's."""
    acks: bool = True
    """Heartbeats are answered."""
    acks_ends: bool = True
    """Ends of attempts are acknowledged."""
    data_key: bytes = b"k" * 32
    tokens: dict[str, JoinTokenRecord] = field(default_factory=dict)
    revocations: Revocations = field(default_factory=Revocations)
    received: list[m.Message] = field(default_factory=list)
    """Everything agents sent over links, in order."""
    hellos: list[m.Hello] = field(default_factory=list)
    attempts: dict[tuple[str, int, int], m.AttemptStatus] = field(default_factory=dict)
    """Last word about each attempt, from updates and snapshots."""
    sandboxes: dict[str, m.SandboxStatus] = field(default_factory=dict)
    link: Link | None = None
    enrolled: int = 0
    renewed: int = 0
    request_ids: int = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    nonces: NonceBook = field(default_factory=NonceBook)
    runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def now(self) -> float:
        return time.time() + self.clock_ahead_s

    # --- what a test does ---

    def join_token(self, **changes: Any) -> str:
        """Mint a token that is good for one node and a minute."""
        token = jointoken.mint(self.authority.pin)
        known = {"expires_unix_s": self.now() + 60, "uses_left": 1} | changes
        self.tokens[token.token_id] = JoinTokenRecord(token.token_id, token.secret_sha256, **known)
        return str(token)

    async def until(self, true: Callable[[], Any], what: str = "") -> Any:
        """Wait until something is true after what agents told, and return it."""
        try:
            async with asyncio.timeout(DEADLINE_S), self.changed:
                while not (found := true()):
                    await self.changed.wait()
                return found
        except TimeoutError:
            pytest.fail(f"{what or 'the condition'} did not come; last words: {self.received[-5:]}")

    async def linked(self) -> Link:
        """Wait for a link that has told its snapshot."""
        link: Link = await self.until(lambda: self.link, "a link")
        return link

    async def ask(self, message: m.Message) -> m.Reply:
        """Send a request and wait for its Reply."""
        link = await self.linked()
        link.send_nowait(message)
        request_id = message.request_id  # type: ignore[attr-defined]
        reply: m.Reply = await self.until(
            lambda: next((r for r in self.all(m.Reply) if r.request_id == request_id), None), f"the reply to {message}"
        )
        return reply

    def next_id(self) -> int:
        self.request_ids += 1
        return self.request_ids

    def all(self, kind: type[T]) -> list[T]:
        return [message for message in self.received if isinstance(message, kind)]

    # --- serving ---

    async def serve(self, port: int = 0) -> None:
        """Listen at `port` (0: any)."""
        server_file = self.directory / "server.pem"
        self.authority.sign_server("c-1", ["127.0.0.1"], server_file, time.time())
        app = web.Application()
        app.router.add_post("/node/v1/enrol", self._enrol)
        app.router.add_get("/node/v1/nonce", self._nonce)
        app.router.add_post("/node/v1/renew", self._renew)
        app.router.add_get("/node/v1/link", self._link)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self.runner.setup()
        context = node_listener_context(server_file, self.authority.certificate_pem)
        site = web.TCPSite(self.runner, "127.0.0.1", port, ssl_context=context)
        await site.start()
        self.port = self.runner.addresses[0][1]

    async def die(self) -> None:
        """Be gone without a word."""
        if self.link is not None:
            await self.link.close("the coordinator goes away")
        if self.runner is not None:
            await self.runner.cleanup()
            self.runner = None

    async def _tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def _enrol(self, request: web.Request) -> web.Response:
        body = await request.json()
        try:
            token = jointoken.parse(body["token"])
            record = self.tokens.get(token.token_id)
            jointoken.check(token, record, pin=self.authority.pin, now_unix_s=self.now())
            check_clock_skew(body["unix_s"], self.now())
            assert record is not None
            left = record.uses_left - 1
            self.tokens[token.token_id] = JoinTokenRecord(
                record.token_id, record.secret_sha256, record.expires_unix_s, left
            )
            node_id = record.node_id or f"n-test{self.enrolled:08d}"
            issued = self.authority.sign_node(body["csr_pem"].encode(), node_id, time.time(), self.certificate_life_s)
        except IdentityError as error:
            status = 400 if isinstance(error, ClockSkewError) else 403
            return web.json_response({"code": error.code, "message": str(error), "hint": ""}, status=status)
        self.enrolled += 1
        return web.json_response(
            {
                "node_id": node_id,
                "certificate_pem": issued.certificate_pem.decode(),
                "ca_pem": self.authority.certificate_pem.decode(),
                "cluster_id": CLUSTER,
            }
        )

    async def _nonce(self, _request: web.Request) -> web.Response:
        return web.json_response({"nonce": self.nonces.issue(time.monotonic())})

    async def _renew(self, request: web.Request) -> web.Response:
        body = await request.json()
        csr_pem = body["csr_pem"].encode()
        try:
            self.nonces.use(body["nonce"], time.monotonic())
            peer = check_renewal(
                self.authority,
                self.revocations,
                certificate_pem=body["certificate_pem"].encode(),
                csr_pem=csr_pem,
                nonce=body["nonce"],
                signature=body["signature"],
                now_unix_s=self.now(),
            )
            issued = self.authority.sign_node(csr_pem, peer.node_id, time.time(), self.certificate_life_s)
        except IdentityError as error:
            return web.json_response({"code": error.code, "message": str(error)}, status=403)
        self.renewed += 1
        pems = {"certificate_pem": issued.certificate_pem.decode(), "ca_pem": self.authority.certificate_pem.decode()}
        return web.json_response(pems)

    async def _link(self, request: web.Request) -> web.StreamResponse:
        try:
            peer = require_peer(request, cluster_id=CLUSTER, role=Role.NODE, revocations=self.revocations)
        except IdentityError as error:
            return web.json_response({"code": error.code, "message": str(error)}, status=403, reason=str(error)[:100])
        websocket = server_websocket()
        await websocket.prepare(request)
        link = Link(websocket, Side.COORDINATOR, name=peer.node_id)
        try:
            hello = await link.receive()
            assert isinstance(hello, m.Hello)
            assert hello.node_id == peer.node_id
            self.hellos.append(hello)
            await link.send(m.Welcome(1, "c-1", CLUSTER, self.now(), self.heartbeat_interval_s, self.data_key, 1))
            await link.run(lambda message: self._take(link, peer.node_id, message))
        finally:
            if self.link is link:
                self.link = None
            await link.close()
            await self._tell()
        return websocket

    async def _take(self, link: Link, node_id: str, message: m.Message) -> None:
        self.received.append(message)
        match message:
            case m.Heartbeat(seq=seq) if self.acks:
                link.send_nowait(m.HeartbeatAck(seq, self.now()))
            case m.Snapshot():
                for attempt in message.attempts:
                    self._attempt(link, attempt)
                self.sandboxes |= {status.sandbox_id: status for status in message.sandboxes}
                if message.last:
                    self.link = link
            case m.AttemptUpdate(status=status):
                self._attempt(link, status)
            case m.SandboxUpdate(sandboxes=sandboxes):
                self.sandboxes |= {status.sandbox_id: status for status in sandboxes}
            case m.CertificateRequest(request_id=request_id, csr_pem=csr_pem):
                issued = self.authority.sign_node(csr_pem, node_id, time.time(), self.certificate_life_s)
                self.renewed += 1
                pem, ca_pem = issued.certificate_pem, self.authority.certificate_pem
                link.send_nowait(m.CertificateIssued(request_id, pem, ca_pem))
            case _:
                pass
        await self._tell()

    def _attempt(self, link: Link, status: m.AttemptStatus) -> None:
        self.attempts[status.job_id, status.index, status.fence] = status
        if status.state is m.AttemptState.ENDED and self.acks_ends:
            link.send_nowait(m.AckAttempts([(status.job_id, status.index, status.fence)]))


async def eventually(true: Callable[[], Any], what: str = "the condition") -> Any:
    """Look every 10 ms until something is true; fails after the deadline."""
    loop = asyncio.get_running_loop()
    end = loop.time() + DEADLINE_S
    while not (found := true()):
        if loop.time() > end:
            pytest.fail(f"{what} did not become true")
        pause: asyncio.Future[None] = loop.create_future()
        loop.call_later(0.01, pause.set_result, None)
        await pause
    return found


@pytest.fixture(name="eventually")
def _eventually() -> Callable[..., Any]:
    return eventually


def make_standin(directory: Path) -> Standin:
    directory.mkdir(parents=True, exist_ok=True)
    authority = Authority.open(directory / "ca", Sealer(b"s" * 32), CLUSTER, time.time())
    return Standin(directory, authority)


@pytest.fixture(scope="session", autouse=True)
def _children_find_our_rooms() -> Iterator[None]:
    """Workers and agents that tests start import from the same places as the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        yield


@pytest.fixture
async def coordinator(tmp_path: Path) -> AsyncIterator[Standin]:
    """A coordinator that listens."""
    standin = make_standin(tmp_path / "coordinator")
    await standin.serve()
    yield standin
    await standin.die()


@pytest.fixture
async def foreign(tmp_path: Path) -> AsyncIterator[Standin]:
    """Another coordinator, with an authority of its own."""
    standin = make_standin(tmp_path / "foreign")
    await standin.serve()
    yield standin
    await standin.die()
