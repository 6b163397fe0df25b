"""One agent's live link as the core sees it: messages in order after the Welcome, streams, hanging up."""

import asyncio
import logging
from typing import final

from kernpool_coordinator.errors import BusyError, UnreachableError
from kernpool_coordinator.nodeside.nodehttp import Grant, NodeConnection, StreamPool
from kernpool_mesh.errors import LinkBusyError, LinkClosedError
from kernpool_mesh.link import Link
from kernpool_mesh.messages import Message, Welcome
from kernpool_mesh.stream import LinkStream
from kernpool_mesh.transport import LinkTransport

log = logging.getLogger("kernpool.link")


@final
class LinkSession:
    """A NodeSession (core/session.py) on a Link."""

    __slots__ = ("_closing", "_early", "_link", "_loop", "data_plane_urls", "node_id", "streams")

    def __init__(self, link: Link, node_id: str, *, stream_idle_s: float) -> None:
        self._link = link
        self._loop = asyncio.get_running_loop()
        self.node_id = node_id
        """Of the certificate, never of the Hello."""
        self.data_plane_urls: list[str] = []
        """From the node's Inventory."""
        self.streams = StreamPool(self._connect, idle_s=stream_idle_s, clock=self._loop.time)
        """HTTP connections to the node's data plane."""
        self._early: list[Message] | None = []
        """What the core sent before the Welcome left; None afterwards."""
        self._closing: asyncio.Task[None] | None = None
        """Says goodbye; kept so that it is not collected."""

    def __repr__(self) -> str:
        return f"<LinkSession {self.node_id}{' closed' if self.closed else ''}>"

    @property
    def closed(self) -> bool:
        """Dead for good."""
        return self._link.end is not None or self._closing is not None

    def welcome(self, message: Welcome) -> None:
        """Send the Welcome, then what the core has queued meanwhile; raises LinkClosedError."""
        early, self._early = self._early or [], None
        for queued in (message, *early):
            self._link.send_nowait(queued)

    def send_nowait(self, message: Message, /) -> None:
        """Queue a message, in order; raises BusyError when the bounded queue is full, UnreachableError when closed."""
        if self._early is not None:
            self._early.append(message)
            return
        try:
            self._link.send_nowait(message)
        except LinkBusyError as error:
            raise BusyError(f"Node {self.node_id} takes its messages too slowly: {error}.") from error
        except LinkClosedError as error:
            raise self._gone(error) from error

    async def open_stream(self, actor: str, object_: str, verbs: list[str], /) -> LinkStream:
        """Open a stream to the agent's data-plane server; raises UnreachableError, BusyError."""
        return self._open(Grant(actor, object_, tuple(verbs)))

    def close(self, reason: str, /) -> None:
        """Hang up now; the link's handler then tells the core. Never raises."""
        if self._closing is None:
            self._closing = self._loop.create_task(self._link.close(reason), name=f"close link of {self.node_id}")

    async def closed_down(self) -> None:
        """Wait until a goodbye that is being said is said."""
        self.streams.close()
        if self._closing is not None:
            await self._closing

    def _open(self, grant: Grant) -> LinkStream:
        try:
            return self._link.open_stream(grant.actor, grant.object, grant.verbs)
        except LinkBusyError as error:
            raise BusyError(f"Node {self.node_id} has too many streams open: {error}.", hint="Try again.") from error
        except LinkClosedError as error:
            raise self._gone(error) from error

    def _connect(self, grant: Grant) -> NodeConnection:
        connection = NodeConnection(self._loop)
        LinkTransport(self._open(grant), connection)
        return connection

    def _gone(self, error: LinkClosedError) -> UnreachableError:
        return UnreachableError(f"The link to node {self.node_id} is over: {error}.")
