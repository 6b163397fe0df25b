"""The asyncio client: every call of the API."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Final, Self, TypeVar, final

import aiohttp

from kernpool import results
from kernpool.aio.jobs import Job
from kernpool.aio.sandbox import Sandboxes
from kernpool.aio.transport import Request, Stream, Transport, new_retries, translated, url_of, with_retries
from kernpool.endpoint import Endpoint, find_endpoint
from kernpool.errors import ApiError, UnreachableError
from kernpool.protocol import calls
from kernpool.protocol.calls import Call, Page
from kernpool.protocol.lines import LineReader
from kernpool.protocol.origin import Origin, coordinator_origin, node_origin
from kernpool.protocol.retries import TransportError, told
from kernpool.protocol.routes import Direct, Routes, Way
from kernpool.protocol.websocket import MESSAGE_BYTES_MAX
from kernpool.tasks import TaskLike, task_document
from kernpool.tls import tls_context

T = TypeVar("T")
OPEN_TIMEOUT_S: Final = calls.CALL_TIMEOUT_S


@final
class Client:
    """One coordinator, for one event loop; an async context manager."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        ca_file: str | None = None,
        direct: bool | None = None,
        endpoint: Endpoint | None = None,
    ) -> None:
        """Connects to nothing yet; as `kernpool.Client`."""
        self.endpoint = endpoint or find_endpoint(url, token, ca_file)
        self.origin: Origin = coordinator_origin(self.endpoint)
        self.transport = Transport()
        use_direct = (not self.endpoint.is_local) if direct is None else direct
        self.routes = Routes(use_direct=use_direct, clock=time.monotonic)
        self.sandboxes = Sandboxes(self)

    def __repr__(self) -> str:
        return f"aio.Client({self.endpoint.url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection; what runs goes on."""
        await self.transport.close()

    # --- the coordinator ---

    async def info(self) -> results.ServerInfo:
        """Ask what the coordinator is."""
        return await self.run(calls.info())

    async def status(self) -> results.Status:
        """Ask for everything at a glance."""
        return await self.run(calls.status())

    def nodes(self) -> AsyncIterator[results.NodeInfo]:
        """List the nodes."""
        return self.pages(calls.nodes)

    async def node(self, name: str) -> results.NodeInfo:
        """Show a node, by id or name."""
        return await self.run(calls.node(name))

    async def remove_node(self, name: str) -> None:
        """Put a node out of the mesh: its certificate counts no more."""
        await self.run(calls.remove_node(name))

    def clusters(self) -> AsyncIterator[results.ClusterInfo]:
        """List the clusters."""
        return self.pages(calls.clusters)

    async def cluster(self, name: str) -> results.ClusterInfo:
        """Show a cluster."""
        return await self.run(calls.cluster(name))

    async def down(self, name: str) -> None:
        """Cancel a cluster's jobs and give its hold back."""
        await self.run(calls.down(name))

    # --- jobs ---

    async def launch(self, task: TaskLike, cluster: str | None = None) -> Job:
        """Submit a job; with `cluster` the named hold is made when it is missing. Raises SpecError, ApiError."""
        return Job(self, await self.run(calls.submit(task_document(task), cluster, must_exist=False)))

    async def exec(self, task: TaskLike, cluster: str) -> Job:
        """Submit a job to the queue of a cluster that is there."""
        return Job(self, await self.run(calls.submit(task_document(task), cluster, must_exist=True)))

    async def job(self, job_id: str) -> Job:
        """Take up a job. Raises NotFoundError."""
        return Job(self, await self.run(calls.job(job_id)))

    def jobs(self, cluster: str | None = None, state: Sequence[str] = ()) -> AsyncIterator[results.JobInfo]:
        """List jobs, newest first."""
        return self.pages(lambda after: calls.jobs(cluster, state, after=after))

    # --- tokens and events ---

    async def create_join_token(
        self, *, uses: int = 1, expires_s: float = 900.0, pool: str = "default", node_id: str | None = None
    ) -> results.JoinToken:
        """Make a token with which machines join; its text is in this answer only."""
        return await self.run(calls.create_join_token(uses, expires_s, pool, node_id))

    def join_tokens(self) -> AsyncIterator[results.JoinToken]:
        """List the join tokens that still count."""
        return self.pages(calls.join_tokens)

    async def remove_join_token(self, token_id: str) -> None:
        """Make a join token worthless."""
        await self.run(calls.remove_join_token(token_id))

    async def create_token(self, name: str, *, role: str = "user", workspace: str = "default") -> results.ApiToken:
        """Make a token of the API; its text is in this answer only."""
        return await self.run(calls.create_token(name, role, workspace))

    def tokens(self) -> AsyncIterator[results.ApiToken]:
        """List the API's tokens."""
        return self.pages(calls.tokens)

    async def remove_token(self, token_id: str) -> None:
        """Make a token of the API worthless."""
        await self.run(calls.remove_token(token_id))

    async def events(self, after: int | None = None, *, follow: bool = False) -> AsyncIterator[results.Event]:
        """Give the events after that id, oldest first; with `follow` also those to come, over cut connections too."""
        while not follow:
            page = await self.run(calls.events(after))
            for event in page.items:
                yield event
            if not page.next or not page.items:
                return
            after = page.items[-1].id
        while True:
            with told(self.origin):
                async with await self.open(Request("GET", calls.follow_events_path(after))) as stream:
                    lines = LineReader()
                    try:
                        while data := await stream.read():
                            for line in lines.feed(data):
                                event = results.Event.read(line)
                                after = event.id
                                yield event
                    except TransportError:
                        continue  # the server restarts or the network broke: `open` decides when it is enough

    # --- how calls are made ---

    async def run(self, call: Call[T]) -> T:
        """Make a call at the coordinator. Raises KernpoolError."""
        return await self.transport.run(self.origin, call)

    async def pages(self, call: Callable[[str], Call[Page[T]]]) -> AsyncIterator[T]:
        """Give every item of a paged listing."""
        after = ""
        while True:
            page = await self.run(call(after))
            for item in page.items:
                yield item
            if not page.next or page.next == after:
                return
            after = page.next

    async def open(self, request: Request) -> Stream:
        """Begin a streamed answer of the coordinator. Raises KernpoolError, also for a refusal."""
        retries = new_retries(repeatable=request.repeatable, timeout_s=OPEN_TIMEOUT_S)
        stream = await with_retries(retries, self.origin, lambda: self.transport.open(self.origin, request, None))
        return await accepted(stream, self.origin, f"{request.method} {request.path.split('?')[0]}")

    async def run_at_node(self, object_: str, node: str, call: Call[T]) -> T:
        """Make a call at a sandbox's node, straight or through the coordinator."""
        return await self._at_node(object_, node, lambda origin: self.transport.run(origin, call))

    async def open_at_node(self, object_: str, node: str, request: Callable[[bool], Request]) -> Stream:
        """Begin a streamed answer of a node; `request` is told whether it goes straight there."""

        async def once(origin: Origin) -> Stream:
            wanted = request(origin.is_node)
            retries = new_retries(repeatable=wanted.repeatable, timeout_s=OPEN_TIMEOUT_S)
            if origin.is_node:
                stream = await self.transport.open(origin, wanted, None)
            else:
                stream = await with_retries(retries, origin, lambda: self.transport.open(origin, wanted, None))
            return await accepted(stream, origin, f"{wanted.method} {wanted.path.split('?')[0]}")

        return await self._at_node(object_, node, once)

    async def websocket_at_node(self, object_: str, node: str, path: str) -> aiohttp.ClientWebSocketResponse:
        """Open a WebSocket to a sandbox's node."""

        async def once(origin: Origin) -> aiohttp.ClientWebSocketResponse:
            try:
                return await self.transport.session().ws_connect(
                    url_of(origin, path),
                    headers=dict(origin.headers()[1:]),
                    max_msg_size=MESSAGE_BYTES_MAX,
                    ssl=tls_context(origin) if origin.is_tls else True,
                    server_hostname=origin.server_name or None,
                )
            except aiohttp.WSServerHandshakeError as error:
                raise await self._refusal(origin, path, error) from error
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise translated(error, sent=not isinstance(error, aiohttp.ClientConnectorError)) from error

        return await self._at_node(object_, node, once)

    async def _refusal(self, origin: Origin, path: str, error: aiohttp.WSServerHandshakeError) -> ApiError:
        """Find out why a WebSocket was refused: aiohttp drops the answer's body, so ask again without upgrading."""
        stream = await self.transport.open(origin, Request("GET", path), 10.0)
        body = await stream.read_all(10.0, 1 << 20)
        told_why = calls.refusal(error.status, body, "GET (WebSocket)")
        return told_why if stream.status == error.status else calls.refusal(error.status, b"", "GET (WebSocket)")

    async def _at_node(self, object_: str, node: str, do: Callable[[Origin], Awaitable[T]]) -> T:
        """Do it at the node's own listener where that can be reached, else at the coordinator."""
        node = node or object_
        may_renew = True
        while True:
            way = await self._way(object_, node)
            if not isinstance(way, Direct):
                with told(self.origin):
                    return await do(self.origin)
            origin = node_origin(way)
            try:
                return await do(origin)
            except (TransportError, UnreachableError) as error:
                cause = error if isinstance(error, TransportError) else error.__cause__
                if not isinstance(cause, TransportError) or cause.sent:
                    with told(origin):
                        raise
                self.routes.unreachable(way)
            except ApiError as error:
                # Its key was rotated, or its clock thinks the token old: one new token, then it counts.
                if error.status != 401 or not may_renew:
                    raise
                may_renew = False
                self.routes.forget(object_)

    async def _way(self, object_: str, node: str) -> Way:
        way = self.routes.known(object_, node)
        if way is not None:
            return way
        try:
            access = await self.run(calls.access(object_))
        except ApiError as error:
            if error.status in (401, 403, 404):
                raise
            return self.routes.not_granted(node)
        return self.routes.granted(object_, node, access)


async def accepted(stream: Stream, origin: Origin, what: str) -> Stream:
    """Give the stream back, or raise the ApiError that it is."""
    if stream.status < 300:
        return stream
    with told(origin):
        body = await stream.read_all(10.0, 1 << 20)
    raise calls.refusal(stream.status, body, what)
