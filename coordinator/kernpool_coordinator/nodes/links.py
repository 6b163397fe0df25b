"""The live links: which node is there, which requests wait for its answer, and until when."""

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from kernpool_coordinator.core.clock import Clock
from kernpool_coordinator.core.session import NodeSession
from kernpool_coordinator.errors import (
    CoordinatorError,
    NodeRefusedError,
    NodeTimeoutError,
    NotFoundError,
    TooLargeError,
    UnreachableError,
)
from kernpool_mesh.errors import MessageTooLargeError
from kernpool_mesh.messages import Message, Reply

OnAnswer = Callable[[str, str], None]
"""Called once with (code, error): "" and "" when it was done; `timeout` and `unreachable` are ours."""


@final
@dataclass(slots=True)
class _Request:
    node_id: str
    session: NodeSession
    on_answer: OnAnswer
    what: str


@final
class Links:
    """Sessions by node, and requests by number. Numbers start at random, so that no answer meant for an earlier
    coordinator is taken for ours."""

    def __init__(self, clock: Clock, first_request: int) -> None:
        self._clock = clock
        self._next = first_request
        self._sessions: dict[str, NodeSession] = {}
        self._synced: set[str] = set()
        """Nodes whose snapshot we have: before it nothing is sent, so that it cannot miss what we send."""
        self._requests: dict[int, _Request] = {}
        self._deadlines: list[tuple[float, int]] = []
        """Heap of (monotonic time, request)."""

    # --- sessions ---

    def add(self, session: NodeSession) -> NodeSession | None:
        """Take a new session; returns the older one of the node, which is to be closed."""
        older = self._sessions.get(session.node_id)
        self._sessions[session.node_id] = session
        self._synced.discard(session.node_id)
        if older is not None:
            self._fail_all(older)
        return older

    def remove(self, session: NodeSession) -> bool:
        """Forget a session; False when a newer one has taken its place. Its requests end as `unreachable`."""
        current = self._sessions.get(session.node_id) is session
        if current:
            del self._sessions[session.node_id]
            self._synced.discard(session.node_id)
        self._fail_all(session)
        return current

    def is_current(self, session: NodeSession) -> bool:
        """Whether this is the node's newest session."""
        return self._sessions.get(session.node_id) is session

    def set_synced(self, node_id: str) -> None:
        """The node's snapshot is complete: work may be sent."""
        self._synced.add(node_id)

    def is_synced(self, node_id: str) -> bool:
        """Whether work may be sent to the node."""
        return node_id in self._synced

    def synced_nodes(self) -> list[str]:
        """Nodes that work may be sent to."""
        return list(self._synced)

    def get(self, node_id: str) -> NodeSession | None:
        """Find the node's live session."""
        return self._sessions.get(node_id)

    @property
    def linked(self) -> int:
        """Number of live links."""
        return len(self._sessions)

    # --- requests ---

    def next_id(self) -> int:
        """Take a number for a request of one's own kind of answer."""
        self._next += 1
        return self._next

    def send(
        self, node_id: str, make: Callable[[int], Message], what: str, timeout_s: float, on_answer: OnAnswer
    ) -> None:
        """Send a request; the answer comes by callback.

        Raises UnreachableError, BusyError, TooLargeError: then nothing was sent.
        """
        request_id = self.next_id()
        session = self.post(node_id, make(request_id))
        self._requests[request_id] = _Request(node_id, session, on_answer, what)
        heapq.heappush(self._deadlines, (self._clock.now().mono + timeout_s, request_id))

    def post(self, node_id: str, message: Message) -> NodeSession:
        """Send a message that has its own kind of answer. Raises as `send`."""
        session = self._sessions.get(node_id)
        if session is None or node_id not in self._synced:
            raise UnreachableError(f"node {node_id} is not linked")
        try:
            session.send_nowait(message)
        except MessageTooLargeError as error:
            raise TooLargeError(f"it does not fit into one message to node {node_id}: {error}") from error
        return session

    async def ask(self, node_id: str, make: Callable[[int], Message], what: str, timeout_s: float) -> None:
        """Send a request and wait until it is done. Raises what `answer_error` makes of the answer."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_answer(code: str, error: str) -> None:
            if done.done():
                return
            if code:
                done.set_exception(answer_error(node_id, what, code, error))
            else:
                done.set_result(None)

        self.send(node_id, make, what, timeout_s, on_answer)
        await done

    def answered(self, session: NodeSession, reply: Reply) -> bool:
        """Take a Reply; False when nobody waits for it (too late, or another kind of request)."""
        request = self._requests.get(reply.request_id)
        if request is None or request.session is not session:
            return False
        del self._requests[reply.request_id]
        request.on_answer("" if not reply.error and not reply.code else reply.code or "internal", reply.error)
        return True

    def tick(self, mono: float) -> None:
        """End the requests whose time is over."""
        while self._deadlines and self._deadlines[0][0] <= mono:
            _, request_id = heapq.heappop(self._deadlines)
            request = self._requests.pop(request_id, None)
            if request is not None:
                request.on_answer("timeout", f"no answer to {request.what} in time")

    def _fail_all(self, session: NodeSession) -> None:
        gone = [number for number, request in self._requests.items() if request.session is session]
        for number in gone:
            request = self._requests.pop(number)
            request.on_answer("unreachable", f"the link of {request.node_id} broke")


def answer_error(node_id: str, what: str, code: str, error: str) -> CoordinatorError:
    """Turn a node's refusal into the error that a caller of the API sees."""
    match code:
        case "unreachable":
            return UnreachableError(f"the link of node {node_id} broke before it answered to {what}")
        case "timeout":
            return NodeTimeoutError(f"node {node_id} did not answer to {what} in time: the outcome is not known yet")
        case "not_found":
            return NotFoundError(f"node {node_id}: {error or f'{what}: not there'}")
        case _:
            return NodeRefusedError(f"node {node_id} refused {what}: {error or code}")
