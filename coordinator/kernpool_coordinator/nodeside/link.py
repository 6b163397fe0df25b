"""GET /node/v1/link: one agent's link from its greeting to its end."""

import asyncio
import logging
from typing import final

from aiohttp import web

from kernpool_coordinator.core.control import ControlPlane
from kernpool_coordinator.errors import CoordinatorError, InvalidError
from kernpool_coordinator.nodeside.arrivals import Arrivals
from kernpool_coordinator.nodeside.issue import Issuer
from kernpool_coordinator.nodeside.session import LinkSession
from kernpool_mesh.errors import LinkError
from kernpool_mesh.link import Link, Side
from kernpool_mesh.messages import CertificateIssued, CertificateRequest, Hello, Inventory, Message
from kernpool_mesh.websocket import server_websocket
from kernpool_tls.peer import PeerIdentity

log = logging.getLogger("kernpool.link")


@final
class LinkServer:
    """Takes links; every live one is a session that the core knows."""

    def __init__(
        self, core: ControlPlane, issuer: Issuer, arrivals: Arrivals, *, greeting_s: float, stream_idle_s: float
    ) -> None:
        self._core = core
        self._issuer = issuer
        self._arrivals = arrivals
        self._greeting_s = greeting_s
        """The Hello must have come by then."""
        self._stream_idle_s = stream_idle_s
        self._sessions: set[LinkSession] = set()
        self._renewals: set[asyncio.Task[None]] = set()

    @property
    def sessions(self) -> frozenset[LinkSession]:
        """The live links."""
        return frozenset(self._sessions)

    async def serve(self, request: web.BaseRequest, peer: PeerIdentity) -> web.WebSocketResponse:
        """Upgrade the request of an authenticated node and run its link to the end."""
        websocket = server_websocket()
        await websocket.prepare(request)
        link = Link(websocket, Side.COORDINATOR, name=f"link of {peer.node_id}")
        reason = ""
        try:
            hello = await self._greeting(link)
            await self._run(link, peer, hello)
        except CoordinatorError as error:
            reason = error.message
            log.warning("link of %s refused: %s", peer.node_id, error.message)
        except LinkError as error:
            log.warning("link of %s ended before it began: %s", peer.node_id, error)
        finally:
            await link.close(reason)
        return websocket

    async def stop(self, reason: str) -> None:
        """Say goodbye to all; the agents' work goes on."""
        for session in self.sessions:
            session.close(reason)
        await asyncio.gather(*(session.closed_down() for session in self.sessions))

    async def _greeting(self, link: Link) -> Hello:
        try:
            async with asyncio.timeout(self._greeting_s):
                message = await link.receive()
        except TimeoutError as error:
            raise InvalidError(f"No Hello came within {self._greeting_s:g} s.") from error
        if not isinstance(message, Hello):
            raise InvalidError(f"The first message is a {type(message).__name__}, expected a Hello.")
        return message

    async def _run(self, link: Link, peer: PeerIdentity, hello: Hello) -> None:
        session = LinkSession(link, peer.node_id, stream_idle_s=self._stream_idle_s)
        welcome = self._core.node_connected(session, hello)
        self._sessions.add(session)
        sentence = "the coordinator failed"
        try:
            session.welcome(welcome)
            self._arrivals.arrived(peer.node_id)
            log.info("node %s linked (incarnation %d, agent %s)", peer.node_id, hello.incarnation, hello.agent_version)
            sentence = (await link.run(lambda message: self._take(session, peer, message))).sentence
        finally:
            self._sessions.discard(session)
            await session.closed_down()
            log.info("node %s unlinked: %s", peer.node_id, sentence)
            self._core.node_disconnected(session, sentence)

    def _take(self, session: LinkSession, peer: PeerIdentity, message: Message) -> None:
        match message:
            case CertificateRequest():
                task = asyncio.ensure_future(self._renew(session, peer, message))
                self._renewals.add(task)
                task.add_done_callback(self._renewals.discard)
            case Inventory():
                session.data_plane_urls = message.data_plane_urls[:16]
                self._core.node_message(session, message)
            case _:
                self._core.node_message(session, message)

    async def _renew(self, session: LinkSession, peer: PeerIdentity, request: CertificateRequest) -> None:
        """The node's next certificate, over its live link."""
        try:
            certificate = await self._issuer.renew_linked(peer, request.csr_pem)
            answer = CertificateIssued(request.request_id, certificate.certificate_pem, self._issuer.ca_pem)
        except CoordinatorError as error:
            log.warning("certificate of %s not renewed: %s", session.node_id, error.message)
            answer = CertificateIssued(request.request_id, error=error.message)
        try:
            session.send_nowait(answer)
        except CoordinatorError as error:
            log.info("node %s did not get its certificate, it will ask again: %s", session.node_id, error.message)
