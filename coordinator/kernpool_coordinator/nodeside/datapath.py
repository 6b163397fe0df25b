"""The coordinator's way to the data planes of all nodes: HTTP requests through the node's live link."""

import contextlib
from collections.abc import AsyncIterator
from typing import final

from kernpool_coordinator.core.control import ControlPlane
from kernpool_coordinator.errors import CoordinatorError, NodeTimeoutError, UnreachableError
from kernpool_coordinator.http.problems import NodeAnswerError
from kernpool_coordinator.nodeside.arrivals import Arrivals
from kernpool_coordinator.nodeside.nodehttp import Grant, NodeAnswer, NodeHttpError, NodeRequest, exchange
from kernpool_coordinator.nodeside.session import LinkSession


@final
class DataPath:
    """Sends requests to nodes by id; knows nothing of who may, that was asked before."""

    __slots__ = ("_core", "_first_byte_s", "arrivals")

    def __init__(self, core: ControlPlane, arrivals: Arrivals, *, first_byte_s: float) -> None:
        self._core = core
        self.arrivals = arrivals
        """Tells when a node links."""
        self._first_byte_s = first_byte_s
        """An answer's head must have come by then."""

    def data_plane_urls(self, node_id: str) -> list[str]:
        """Where the node's own listener can be reached, best first; raises UnreachableError when it is not linked."""
        return self._session(node_id).data_plane_urls

    def linked(self, node_id: str) -> bool:
        """Whether its link stands now."""
        try:
            return not self._session(node_id).closed
        except CoordinatorError:
            return False

    @contextlib.asynccontextmanager
    async def request(self, node_id: str, grant: Grant, request: NodeRequest) -> AsyncIterator[NodeAnswer]:
        """One exchange; leaving it early resets the stream, so that the node stops working on it.

        Raises UnreachableError (no link, or it broke), NodeTimeoutError, NodeAnswerError.
        """
        session = self._session(node_id)
        connection = session.streams.take(grant)
        answer: NodeAnswer | None = None
        try:
            try:
                answer = await exchange(connection, node_id, request, first_byte_s=self._first_byte_s)
            except TimeoutError as error:
                raise NodeTimeoutError(
                    f"Node {node_id} did not answer {request.method} {request.target} within {self._first_byte_s:g} s."
                ) from error
            except NodeHttpError as error:
                raise self._broken(session, error) from error
            yield answer
        finally:
            if answer is not None and answer.complete:
                session.streams.give_back(grant, connection)
            else:
                if answer is not None and answer.sender is not None:
                    answer.sender.cancel()
                connection.abort()

    def _session(self, node_id: str) -> LinkSession:
        session = self._core.session(node_id)
        assert isinstance(session, LinkSession)
        return session

    def _broken(self, session: LinkSession, error: NodeHttpError) -> UnreachableError | NodeAnswerError:
        """Our error for an exchange that broke: the whole link is gone, or the node cut this one."""
        if session.closed:
            return UnreachableError(
                f"The link to node {session.node_id} broke during the request.",
                hint="What the request did is not known; the node will be back by itself if its agent lives.",
            )
        return NodeAnswerError(f"Node {session.node_id}: {error}.")
