"""A small agent for the tests: enrols, links over mutual TLS, answers the core, serves a data plane of its own."""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import aiohttp
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from kernpool_mesh.link import Link, Side
from kernpool_mesh.messages import (
    AttemptState,
    AttemptStatus,
    AttemptUpdate,
    CertificateIssued,
    CertificateRequest,
    CommandResult,
    CreateSandboxes,
    ExtendSandbox,
    Heartbeat,
    Hello,
    Inventory,
    Message,
    RemoveSandboxes,
    Reply,
    Resources,
    SandboxItem,
    SandboxItems,
    SandboxState,
    SandboxStatus,
    SetPools,
    Snapshot,
    StartAttempt,
    StopAttempt,
    Welcome,
)
from kernpool_mesh.reasons import EndReason
from kernpool_mesh.stream import LinkStream
from kernpool_mesh.transport import serve_stream, stream_of
from kernpool_mesh.websocket import connect_websocket
from kernpool_tls.contexts import client_context
from kernpool_tls.names import COORDINATOR_DNS_NAME

POLL_S: Final = 0.01
BEAT_S: Final = 0.1
QUIET_S: Final = 0.3
"""A number that did not change for so long stands still."""

MessageT = TypeVar("MessageT", bound=Message)


def new_request() -> tuple[ec.EllipticCurvePrivateKey, bytes]:
    """A key and a certificate request for it."""
    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    return key, request.public_bytes(Encoding.PEM)


async def until(condition: Callable[[], Any], what: str = "", timeout_s: float = 5.0) -> None:
    """Wait until `condition()`, which may be a coroutine function, gives something true."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        result = condition()
        if await result if asyncio.iscoroutine(result) else result:
            return
        await asyncio.sleep(POLL_S)
    raise AssertionError(f"not within {timeout_s} s: {what or condition}")


async def standstill(number: Callable[[], int], timeout_s: float = 10.0) -> int:
    """Wait until `number()` moves no more; what it is then."""
    deadline_s = time.monotonic() + timeout_s
    last, since_s = number(), time.monotonic()
    while time.monotonic() < deadline_s:
        await asyncio.sleep(POLL_S)
        if number() != last:
            last, since_s = number(), time.monotonic()
        elif time.monotonic() - since_s > QUIET_S:
            return last
    raise AssertionError(f"still moving after {timeout_s} s, at {last}")


async def post(url: str, ca_pem: str, path: str, body: Any) -> tuple[int, Any]:
    """Status and document of a POST to the node listener without a client certificate."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(url + path, json=body, ssl=client_context(ca_pem), server_hostname=COORDINATOR_DNS_NAME) as answer,
    ):
        return answer.status, await answer.json()


class StandIn:
    """One node."""

    def __init__(
        self, url: str, ca_pem: str, node_id: str, key: ec.EllipticCurvePrivateKey, pem: str, file: Path
    ) -> None:
        self.url = url
        self.ca_pem = ca_pem
        self.node_id = node_id
        self.key = key
        self.next_key = key
        """Of the certificate that was asked for."""
        self.certificate_pem = pem
        self.identity_file = file
        self.incarnation = 0
        self.welcome: Welcome | None = None
        self.received: list[Message] = []
        self.plane = Plane()
        self.sandboxes: dict[str, SandboxStatus] = {}
        self.attempts: dict[tuple[str, int], AttemptStatus] = {}
        self.on_create: Callable[[CreateSandboxes], None] | None = None
        """Answers a bulk create in place of the usual."""
        self.connection: Link | None = None
        self._session: aiohttp.ClientSession | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self.ended = asyncio.Event()

    @classmethod
    async def enrol(cls, url: str, token: str, ca_pem: str, directory: Path, *, hostname: str) -> Self:
        key, csr_pem = new_request()
        body = {
            "token": token,
            "csr_pem": csr_pem.decode(),
            "hostname": hostname,
            "agent_version": "0",
            "unix_s": time.time(),
        }
        status, answer = await post(url, ca_pem, "/node/v1/enrol", body)
        assert status == 200, answer
        file = directory / f"{answer['node_id']}.pem"
        agent = cls(url, answer["ca_pem"], answer["node_id"], key, answer["certificate_pem"], file)
        agent.write_identity()
        return agent

    def write_identity(self) -> None:
        key_pem = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        self.identity_file.write_text(key_pem + self.certificate_pem)

    async def connect(self) -> aiohttp.ClientWebSocketResponse:
        """The WebSocket of the link, before any message."""
        if self._session is None:
            self._session = aiohttp.ClientSession()
        return await connect_websocket(
            self._session,
            f"{self.url}/node/v1/link",
            ssl_context=client_context(self.ca_pem, self.identity_file),
            server_hostname=COORDINATOR_DNS_NAME,
        )

    async def link(self, *, incarnation: int | None = None, snapshot: bool = True) -> Link:
        """Link, greet, tell what is here; runs on in the background."""
        self.incarnation = self.incarnation + 1 if incarnation is None else incarnation
        ended = self.ended = asyncio.Event()
        link = Link(await self.connect(), Side.AGENT)
        self.connection = link
        await self.plane.start()
        link.on_stream(self.plane.serve)
        hello = Hello(1, 1, self.node_id, self.incarnation, "boot", "0.1.0")
        try:
            await link.send(hello)
            welcome = await link.receive()
        except BaseException:
            await link.close()
            raise
        assert isinstance(welcome, Welcome)
        self.welcome = welcome
        await link.send(self.inventory())
        if snapshot:
            await link.send(Snapshot(list(self.attempts.values()), list(self.sandboxes.values())))
        self._tasks += [asyncio.create_task(self._run(link, ended)), asyncio.create_task(self._beat(link))]
        return link

    def inventory(self) -> Inventory:
        return Inventory(
            hostname="alpha",
            total=Resources(64_000, 64_000, 64_000, 0),
            addresses=["127.0.0.1"],
            data_plane_urls=["https://127.0.0.1:1"],
            isolation=["namespace"],
        )

    async def _run(self, link: Link, ended: asyncio.Event) -> None:
        await link.run(lambda message: self._take(link, message))
        await link.close()
        ended.set()

    async def _beat(self, link: Link) -> None:
        seq = 0
        with contextlib.suppress(Exception):
            while link.end is None:
                seq += 1
                link.send_nowait(Heartbeat(seq, Resources(64_000, 64_000, 64_000, 0)))
                await asyncio.sleep(BEAT_S)

    def _take(self, link: Link, message: Message) -> None:
        self.received.append(message)
        match message:
            case CreateSandboxes():
                (self.on_create or self._create)(message)
            case StartAttempt():
                self.attempts[message.job_id, message.index] = AttemptStatus(
                    message.job_id, message.index, message.fence, AttemptState.RUNNING, started_unix_s=time.time()
                )
                link.send_nowait(Reply(message.request_id))
                link.send_nowait(AttemptUpdate(self.attempts[message.job_id, message.index]))
            case StopAttempt():
                link.send_nowait(Reply(message.request_id))
                self.end_attempt(message.job_id, message.index, reason=message.reason, exit_code=143)
            case RemoveSandboxes():
                for sandbox_id in message.sandbox_ids:
                    self.sandboxes.pop(sandbox_id, None)
                link.send_nowait(Reply(message.request_id))
            case ExtendSandbox() | SetPools():
                link.send_nowait(Reply(message.request_id))

    def end_attempt(
        self, job_id: str, index: int = 0, *, reason: EndReason = EndReason.EXITED, exit_code: int = 0
    ) -> None:
        status = self.attempts[job_id, index]
        status.state, status.reason, status.exit_code = AttemptState.ENDED, reason, exit_code
        status.ended_unix_s = time.time()
        assert self.connection is not None
        self.connection.send_nowait(AttemptUpdate(status))

    def _create(self, message: CreateSandboxes) -> None:
        assert self.connection is not None
        items = []
        for sandbox_id in message.sandbox_ids:
            status = SandboxStatus(sandbox_id, SandboxState.RUNNING, started_unix_s=time.time())
            status.template, status.labels = message.template, message.labels
            status.workspace, status.owner = message.workspace, message.owner
            self.sandboxes[sandbox_id] = status
            result = CommandResult(EndReason.EXITED, 0, stdout=b"hi\n") if message.command else None
            items.append(SandboxItem(sandbox_id, status, result, ready_ms=0.5))
        for start in range(0, len(items), 20):
            done = start + 20 >= len(items)
            self.connection.send_nowait(SandboxItems(message.request_id, items[start : start + 20], done=done))

    async def renew_over_link(self) -> CertificateIssued:
        """Ask for the next certificate over the live link."""
        assert self.connection is not None
        self.key, csr_pem = new_request()
        await self.connection.send(CertificateRequest(77, csr_pem))
        await until(lambda: self.answers(CertificateIssued))
        return self.answers(CertificateIssued)[-1]

    def answers(self, kind: type[MessageT]) -> list[MessageT]:
        """What came of this kind."""
        return [message for message in self.received if isinstance(message, kind)]

    async def drop(self) -> None:
        """Break the link as a killed agent does."""
        assert self.connection is not None
        self.connection._drop_connection()
        await self.ended.wait()

    async def close(self) -> None:
        if self.connection is not None:
            await self.connection.close("the test is over")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.plane.stop()
        if self._session is not None:
            await self._session.close()


class Plane:
    """A data plane with the real one's addresses, over memory."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.log = bytearray()
        self.log_start = 0
        self.log_fence = 1
        self.log_ended = False
        self.cut_log_after: int | None = None
        """Break the connection after so many bytes of a log, once."""
        self.log_requests: list[str] = []
        self.seen: list[tuple[str, dict[str, str], Any]] = []
        """(path with query, headers, stream) of every request."""
        self.body_bytes = 0
        """Of the upload that runs."""
        self.sent_bytes = 0
        """Of the endless download."""
        self.gate = asyncio.Event()
        """What waits, waits for it."""
        self.cancelled = asyncio.Event()
        """A waiting handler was cancelled: the client hung up."""
        self._changed = asyncio.Event()
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        if self._runner is None:
            app = web.Application(client_max_size=1 << 30)
            one = "/v1/sandboxes/{id}"
            app.router.add_routes(
                [
                    web.put(one + "/files", self._put),
                    web.get(one + "/files", self._get),
                    web.get(one + "/files/list", self._list),
                    web.post(one + "/exec", self._exec),
                    web.get(one + "/exec", self._echo),
                    web.get(one + "/ports/{port}", self._echo),
                    web.get("/v1/jobs/{id}/{index}/logs", self._logs),
                ]
            )
            self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
            await self._runner.setup()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def serve(self, stream: LinkStream) -> None:
        assert self._runner is not None
        assert self._runner.server is not None
        serve_stream(stream, self._runner.server)

    def append(self, data: bytes, *, end: bool = False) -> None:
        """Let the log grow."""
        self.log += data
        self.log_ended = self.log_ended or end
        self._changed.set()

    def _see(self, request: web.Request) -> None:
        self.seen.append((request.raw_path, dict(request.headers), stream_of(request.transport)))

    async def _put(self, request: web.Request) -> web.StreamResponse:
        self._see(request)
        if request.query.get("path") == "/refused":
            return web.json_response({"code": "disk_full", "message": "No room.", "hint": ""}, status=507)
        data = bytearray()
        try:
            async for chunk in request.content.iter_any():
                data += chunk
                self.body_bytes = len(data)
                if request.query.get("path") == "/slow":
                    await self.gate.wait()
        except BaseException:
            self.cancelled.set()
            raise
        self.files[request.query["path"]] = bytes(data)
        return web.Response(status=204)

    async def _get(self, request: web.Request) -> web.StreamResponse:
        self._see(request)
        path = request.query["path"]
        if path == "/endless":
            response = web.StreamResponse()
            await response.prepare(request)
            try:
                while True:
                    await response.write(b"x" * 65536)
                    self.sent_bytes += 65536
            except (asyncio.CancelledError, ConnectionError):
                self.cancelled.set()
                raise
        if path == "/cut":
            response = web.StreamResponse(headers={"Content-Length": "1000"})
            await response.prepare(request)
            await response.write(b"x" * 10)
            await self.gate.wait()
            assert request.transport is not None
            request.transport.abort()
            return response
        if path == "/page.html":
            return web.Response(text="<script>", content_type="text/html", headers={"Set-Cookie": "a=b", "X-Evil": "1"})
        if path not in self.files:
            return web.json_response({"code": "not_found", "message": f"No {path}.", "hint": ""}, status=404)
        return web.Response(body=self.files[path])

    async def _list(self, request: web.Request) -> web.StreamResponse:
        self._see(request)
        return web.json_response({"entries": sorted(self.files)})

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        self._see(request)
        command = await request.json()
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        await response.write(json.dumps({"stream": "stdout", "argv": command["argv"]}).encode() + b"\n")
        if command["argv"] == ["wait"]:
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        await response.write(b'{"exit": {"reason": "exited", "exit_code": 0}}\n')
        return response

    async def _echo(self, request: web.Request) -> web.StreamResponse:
        self._see(request)
        if request.match_info.get("port") == "81":
            return web.json_response({"code": "unreachable", "message": "refused", "hint": ""}, status=502)
        websocket = web.WebSocketResponse(max_msg_size=1 << 20)
        await websocket.prepare(request)
        try:
            await self._echo_all(websocket)
        finally:
            self.cancelled.set()
        return websocket

    async def _echo_all(self, websocket: web.WebSocketResponse) -> None:
        async for message in websocket:
            if message.type is aiohttp.WSMsgType.TEXT and message.data == "flood":
                for _ in range(64):
                    await websocket.send_bytes(b"y" * (1 << 20))
            elif message.type is aiohttp.WSMsgType.TEXT and message.data == "wait":
                await self.gate.wait()
            elif message.type is aiohttp.WSMsgType.TEXT and message.data == "bye":
                await websocket.close(code=4000, message=b"as you said")
            elif message.type is aiohttp.WSMsgType.TEXT:
                await websocket.send_str(message.data)
            else:
                await websocket.send_bytes(message.data)

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        self._see(request)
        self.log_requests.append(request.query_string)
        offset = max(int(request.query.get("offset", "0")), self.log_start)
        if "tail" in request.query:
            lines = bytes(self.log).splitlines(keepends=True)
            offset = len(self.log) - sum(map(len, lines[len(lines) - int(request.query["tail"]) :]))
        headers = {"KP-Log-Offset": str(offset), "KP-Log-Fence": str(self.log_fence)}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        follow = request.query.get("follow") == "1"
        while True:
            ended = self.log_ended
            data = bytes(self.log[offset:])
            if self.cut_log_after is not None:
                data, self.cut_log_after = data[: self.cut_log_after], None
                await response.write(data)
                await self.gate.wait()
                assert request.transport is not None
                request.transport.abort()
                return response
            if data:
                await response.write(data)
                offset += len(data)
            elif ended or not follow:
                return response
            else:
                self._changed.clear()
                try:
                    await self._changed.wait()
                except asyncio.CancelledError:
                    self.cancelled.set()
                    raise
