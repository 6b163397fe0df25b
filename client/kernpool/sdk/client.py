"""The synchronous client: every call of the API, over kept connections that threads share."""

import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar, final

from kernpool import results
from kernpool.endpoint import Endpoint, find_endpoint
from kernpool.errors import ApiError, UnreachableError
from kernpool.protocol import calls
from kernpool.protocol.calls import Call, Page
from kernpool.protocol.lines import LineReader
from kernpool.protocol.origin import Origin, coordinator_origin, node_origin
from kernpool.protocol.retries import TransportError, told
from kernpool.protocol.routes import Direct, Routes, Way
from kernpool.sdk.jobs import Job
from kernpool.sdk.sandbox import Sandboxes
from kernpool.sdk.transport import Request, Stream, Transport, new_retries, with_retries
from kernpool.tasks import TaskLike, task_document

if TYPE_CHECKING:
    from kernpool.sdk.websocket import WebSocket

T = TypeVar("T")
OPEN_TIMEOUT_S: Final = calls.CALL_TIMEOUT_S


@final
class Client:
    """One coordinator. Threads may share it; close it, or use it as a context manager."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        ca_file: str | None = None,
        direct: bool | None = None,
        endpoint: Endpoint | None = None,
    ) -> None:
        """Connects to nothing yet. Raises NotRunningError when no coordinator is named and none runs here.

        `direct`: whether to go straight to nodes; None: unless the coordinator is on this machine, where the detour
        through it costs no network and saves a handshake.
        """
        self.endpoint = endpoint or find_endpoint(url, token, ca_file)
        self.origin: Origin = coordinator_origin(self.endpoint)
        self.transport = Transport()
        use_direct = (not self.endpoint.is_local) if direct is None else direct
        self.routes = Routes(use_direct=use_direct, clock=time.monotonic)
        self.sandboxes = Sandboxes(self)

    def __repr__(self) -> str:
        return f"Client({self.endpoint.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; what runs goes on."""
        self.transport.close()

    # --- the coordinator ---

    def info(self) -> results.ServerInfo:
        """Ask what the coordinator is."""
        return self.run(calls.info())

    def status(self) -> results.Status:
        """Ask for everything at a glance."""
        return self.run(calls.status())

    def nodes(self) -> Iterator[results.NodeInfo]:
        """List the nodes."""
        return self.pages(calls.nodes)

    def node(self, name: str) -> results.NodeInfo:
        """Show a node, by id or name."""
        return self.run(calls.node(name))

    def remove_node(self, name: str) -> None:
        """Put a node out of the mesh: its certificate counts no more."""
        self.run(calls.remove_node(name))

    def clusters(self) -> Iterator[results.ClusterInfo]:
        """List the clusters."""
        return self.pages(calls.clusters)

    def cluster(self, name: str) -> results.ClusterInfo:
        """Show a cluster."""
        return self.run(calls.cluster(name))

    def down(self, name: str) -> None:
        """Cancel a cluster's jobs and give its hold back."""
        self.run(calls.down(name))

    # --- jobs ---

    def launch(self, task: TaskLike, cluster: str | None = None) -> Job:
        """Submit a job; with `cluster` the named hold is made when it is missing. Raises SpecError, ApiError."""
        return self._submit(task, cluster, must_exist=False)

    def exec(self, task: TaskLike, cluster: str) -> Job:
        """Submit a job to the queue of a cluster that is there."""
        return self._submit(task, cluster, must_exist=True)

    def _submit(self, task: TaskLike, cluster: str | None, *, must_exist: bool) -> Job:
        return Job(self, self.run(calls.submit(task_document(task), cluster, must_exist=must_exist)))

    def job(self, job_id: str) -> Job:
        """Take up a job. Raises NotFoundError."""
        return Job(self, self.run(calls.job(job_id)))

    def jobs(self, cluster: str | None = None, state: Sequence[str] = ()) -> Iterator[results.JobInfo]:
        """List jobs, newest first."""
        return self.pages(lambda after: calls.jobs(cluster, state, after=after))

    # --- tokens and events ---

    def create_join_token(
        self, *, uses: int = 1, expires_s: float = 900.0, pool: str = "default", node_id: str | None = None
    ) -> results.JoinToken:
        """Make a token with which machines join; its text is in this answer only."""
        return self.run(calls.create_join_token(uses, expires_s, pool, node_id))

    def join_tokens(self) -> Iterator[results.JoinToken]:
        """List the join tokens that still count."""
        return self.pages(calls.join_tokens)

    def remove_join_token(self, token_id: str) -> None:
        """Make a join token worthless."""
        self.run(calls.remove_join_token(token_id))

    def create_token(self, name: str, *, role: str = "user", workspace: str = "default") -> results.ApiToken:
        """Make a token of the API; its text is in this answer only."""
        return self.run(calls.create_token(name, role, workspace))

    def tokens(self) -> Iterator[results.ApiToken]:
        """List the API's tokens."""
        return self.pages(calls.tokens)

    def remove_token(self, token_id: str) -> None:
        """Make a token of the API worthless."""
        self.run(calls.remove_token(token_id))

    def events(self, after: int | None = None, *, follow: bool = False) -> Iterator[results.Event]:
        """Give the events after that id, oldest first; with `follow` also those to come, over cut connections too."""
        return self._follow_events(after) if follow else self._past_events(after)

    def _past_events(self, after: int | None) -> Iterator[results.Event]:
        while True:
            page = self.run(calls.events(after))
            yield from page.items
            if not page.next or not page.items:
                return
            after = page.items[-1].id

    def _follow_events(self, after: int | None) -> Iterator[results.Event]:
        while True:
            with told(self.origin), self.open(Request("GET", calls.follow_events_path(after))) as stream:
                lines = LineReader()
                try:
                    while data := stream.read():
                        for line in lines.feed(data):
                            event = results.Event.read(line)
                            after = event.id
                            yield event
                except TransportError:
                    continue  # the server restarts or the network broke: `open` decides when it is enough

    # --- how calls are made ---

    def run(self, call: Call[T]) -> T:
        """Make a call at the coordinator. Raises KernpoolError."""
        return self.transport.run(self.origin, call)

    def pages(self, call: Callable[[str], Call[Page[T]]]) -> Iterator[T]:
        """Give every item of a paged listing."""
        after = ""
        while True:
            page = self.run(call(after))
            yield from page.items
            if not page.next or page.next == after:
                return
            after = page.next

    def open(self, request: Request) -> Stream:
        """Begin a streamed answer of the coordinator. Raises KernpoolError, also for a refusal."""
        retries = new_retries(repeatable=request.repeatable, timeout_s=OPEN_TIMEOUT_S)
        stream = with_retries(retries, self.origin, lambda: self.transport.open(self.origin, request, None))
        return accepted(stream, self.origin, f"{request.method} {request.path.split('?')[0]}")

    def run_at_node(self, object_: str, node: str, call: Call[T]) -> T:
        """Make a call at a sandbox's node, straight or through the coordinator."""
        return self._at_node(object_, node, lambda origin: self.transport.run(origin, call))

    def open_at_node(self, object_: str, node: str, request: Callable[[bool], Request]) -> Stream:
        """Begin a streamed answer of a node; `request` is told whether it goes straight there."""

        def once(origin: Origin) -> Stream:
            wanted = request(origin.is_node)
            retries = new_retries(repeatable=wanted.repeatable, timeout_s=OPEN_TIMEOUT_S)
            if origin.is_node:
                stream = self.transport.open(origin, wanted, None)
            else:
                stream = with_retries(retries, origin, lambda: self.transport.open(origin, wanted, None))
            return accepted(stream, origin, f"{wanted.method} {wanted.path.split('?')[0]}")

        return self._at_node(object_, node, once)

    def websocket_at_node(self, object_: str, node: str, path: str) -> "WebSocket":
        """Open a WebSocket to a sandbox's node."""
        from kernpool.sdk.websocket import WebSocket

        return self._at_node(object_, node, lambda origin: WebSocket.open(self.transport, origin, path))

    def _at_node(self, object_: str, node: str, do: Callable[[Origin], T]) -> T:
        """Do it at the node's own listener where that can be reached, else at the coordinator."""
        node = node or object_
        may_renew = True
        while True:
            way = self._way(object_, node)
            if not isinstance(way, Direct):
                with told(self.origin):
                    return do(self.origin)
            origin = node_origin(way)
            try:
                return do(origin)
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

    def _way(self, object_: str, node: str) -> Way:
        way = self.routes.known(object_, node)
        if way is not None:
            return way
        try:
            access = self.run(calls.access(object_))
        except ApiError as error:
            if error.status in (401, 403, 404):
                raise
            return self.routes.not_granted(node)
        return self.routes.granted(object_, node, access)


def accepted(stream: Stream, origin: Origin, what: str) -> Stream:
    """Give the stream back, or raise the ApiError that it is."""
    if stream.status < 300:
        return stream
    with told(origin):
        body = stream.read_all(10.0, 1 << 20)
    raise calls.refusal(stream.status, body, what)
