"""Enrolment: a join token becomes a node, and certificates are remembered so that they can be revoked."""

import base64
import secrets
from typing import final

from kernpool_coordinator.core.clock import Clock
from kernpool_coordinator.core.shapes import Certificate, EnrolledNode, Enrolment
from kernpool_coordinator.errors import ForbiddenError
from kernpool_coordinator.events.commits import Commits
from kernpool_coordinator.events.log import EventLog
from kernpool_coordinator.nodes.links import Links
from kernpool_coordinator.nodes.record import KnownCertificate, Node
from kernpool_coordinator.nodes.service import NodeService
from kernpool_coordinator.store import Delete, Operation, schema
from kernpool_coordinator.tokens.actor import SYSTEM
from kernpool_coordinator.tokens.join import JoinTokens, StoredJoinToken

RENEWAL_DAYS = 8
"""An expired certificate may renew for 7 days; a day later it need not be remembered."""


@final
class Enrolments:
    """Who may become, or remain, a node."""

    def __init__(
        self, nodes: NodeService, tokens: JoinTokens, links: Links, commits: Commits, events: EventLog, clock: Clock
    ) -> None:
        self._nodes = nodes
        self._tokens = tokens
        self._links = links
        self._commits = commits
        self._events = events
        self._clock = clock
        self._certificates: dict[str, KnownCertificate] = {}
        """By serial."""

    def restore(self, certificate: KnownCertificate) -> None:
        """Take a certificate from the store."""
        self._certificates[certificate.serial] = certificate
        node = self._nodes.nodes.get(certificate.node_id)
        if node is not None and not certificate.revoked:
            node.certificate_expires_unix_s = max(node.certificate_expires_unix_s, certificate.expires_unix_s)

    async def enrol(self, enrolment: Enrolment) -> EnrolledNode:
        """Use a join token once, durably, and mint or re-admit the node. Raises ForbiddenError, StoreError."""
        async with self._tokens.use():
            token = self._tokens.check(enrolment.token_id, enrolment.secret)
            if token.node_id:
                return await self._enrol_again(token, enrolment)
            return await self._enrol_new(token, enrolment)

    async def _enrol_new(self, token: StoredJoinToken, enrolment: Enrolment) -> EnrolledNode:
        node = Node(
            _node_id(), token.workspace, token.owner, enrolment.hostname, token.pool, 1, self._clock.now().unix,
            agent_version=enrolment.agent_version,
        )  # fmt: skip
        await self._write(token, [node.put()], node, "enrolled")
        self._nodes.admit(node)
        return EnrolledNode(node.id, node.pool, node.generation)

    async def _enrol_again(self, token: StoredJoinToken, enrolment: Enrolment) -> EnrolledNode:
        node = self._nodes.nodes.get(token.node_id)
        if node is None or node.removed:
            raise ForbiddenError(f"the join token is for node {token.node_id}, which is not part of this cluster")
        revoked = [one for one in self._certificates.values() if one.node_id == node.id and not one.revoked]
        for certificate in revoked:
            certificate.revoked = True
        node.generation += 1
        try:
            await self._write(token, [node.put(), *[one.put() for one in revoked]], node, "enrolled_again")
        except Exception:
            node.generation -= 1
            for certificate in revoked:
                certificate.revoked = False
            raise
        session = self._links.get(node.id)
        if session is not None:
            session.close("this node was enrolled anew: its old certificate is revoked")
        node.name = enrolment.hostname or node.name
        return EnrolledNode(node.id, node.pool, node.generation)

    async def _write(self, token: StoredJoinToken, operations: list[Operation], node: Node, verb: str) -> None:
        data = {"name": node.name, "pool": node.pool, "join_token": token.id}
        event = self._events.make(token.owner, verb, f"node/{node.id}", node.workspace, data=data)
        await self._commits.now([self._tokens.spend(token), *operations], [event])
        self._tokens.spent(token)

    async def certificate_issued(self, certificate: Certificate) -> None:
        """Remember what was signed."""
        node = self._nodes.nodes.get(certificate.node_id)
        known = KnownCertificate(
            certificate.serial, certificate.node_id, certificate.generation, certificate.expires_unix_s,
            node.workspace if node else "default", node.owner if node else SYSTEM.name,
        )  # fmt: skip
        await self._commits.now([known.put()])
        self.restore(known)

    def check(self, node_id: str, serial: str) -> int:
        """The node's generation. Raises ForbiddenError for a removed node and a revoked certificate."""
        node = self._nodes.nodes.get(node_id)
        if node is not None and node.removed:
            raise ForbiddenError(f"node {node_id} was removed from this cluster")
        certificate = self._certificates.get(serial)
        if certificate is not None and (certificate.revoked or certificate.node_id != node_id):
            raise ForbiddenError(
                f"this certificate of node {node_id} is revoked: the node was enrolled anew",
                hint="is its state directory copied to a second machine? enrol that one with a token of its own",
            )
        # Unknown to us and yet genuine: the store was set back. Locking the node out would help nobody.
        return node.generation if node is not None else 1

    def prune(self) -> list[Operation]:
        """Forget certificates that can neither be used nor renewed; gives the operations."""
        horizon = self._clock.now().unix - RENEWAL_DAYS * 86_400
        old = [serial for serial, one in self._certificates.items() if one.expires_unix_s < horizon]
        for serial in old:
            del self._certificates[serial]
        return [Delete(schema.certificates, {"serial": serial}) for serial in old]


def _node_id() -> str:
    return "n-" + base64.b32encode(secrets.token_bytes(10)).decode().lower()[:12]
