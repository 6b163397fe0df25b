"""Certificates for nodes: at enrolment by a join token, over the live link, and after their end by the old key."""

import hmac
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

from kernpool_coordinator.core.control import ControlPlane
from kernpool_coordinator.core.shapes import Certificate, EnrolledNode, Enrolment
from kernpool_coordinator.nodeside.refusals import translated
from kernpool_tls import jointoken
from kernpool_tls.authority import Authority, Issued, check_request
from kernpool_tls.errors import JoinTokenForeignError
from kernpool_tls.peer import PeerIdentity, Revocations
from kernpool_tls.renewal import NonceBook, check_renewal
from kernpool_tls.times import check_clock_skew

log = logging.getLogger("kernpool.enrol")


@final
@dataclass(frozen=True, slots=True)
class Renewal:
    """What a node with an expired certificate shows."""

    certificate_pem: bytes
    csr_pem: bytes
    nonce: str
    signature: str = field(repr=False)


@final
class Issuer:
    """Signs for nodes what the core allows, and tells the core of every certificate."""

    def __init__(
        self,
        core: ControlPlane,
        authority: Authority,
        *,
        life_s: float,
        now_unix_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._core = core
        self._authority = authority
        self._life_s = life_s
        self._now_unix_s = now_unix_s
        self._monotonic_s = monotonic_s
        self._nonces = NonceBook()
        self.ca_pem = authority.certificate_pem
        self.cluster_id = authority.cluster_id

    async def enrol(
        self, token_text: str, csr_pem: bytes, *, hostname: str, agent_version: str, unix_s: float
    ) -> tuple[EnrolledNode, Issued]:
        """Use a join token once and sign for the new node.

        Everything that can be wrong with the request itself is found before the token is used up. Raises
        IdentityRefusedError, ForbiddenError (used up, expired, unknown).
        """
        with translated():
            check_clock_skew(unix_s, self._now_unix_s())
            token = jointoken.parse(token_text)
            if not hmac.compare_digest(token.pin, self._authority.pin):
                raise JoinTokenForeignError("the join token is for another coordinator: it pins another authority")
            check_request(csr_pem)
        node = await self._core.enrol_node(Enrolment(token.token_id, token.secret, hostname, agent_version))
        issued = await self._sign(node.node_id, node.generation, csr_pem)
        log.info("node %s (%s) enrolled into pool %s", node.node_id, hostname, node.pool)
        return node, issued

    async def renew_linked(self, peer: PeerIdentity, csr_pem: bytes) -> Issued:
        """The next certificate of a node whose link stands; raises IdentityRefusedError, ForbiddenError."""
        generation = self._core.check_certificate(peer.node_id, peer.serial)
        return await self._sign(peer.node_id, generation, csr_pem)

    def nonce(self) -> str:
        """A nonce for `renew_expired`; raises IdentityRefusedError while too many are out."""
        with translated():
            return self._nonces.issue(self._monotonic_s())

    async def renew_expired(self, renewal: Renewal) -> Issued:
        """A certificate for the holder of an old one's key; raises IdentityRefusedError, ForbiddenError."""
        with translated():
            self._nonces.use(renewal.nonce, self._monotonic_s())
            peer = check_renewal(
                self._authority,
                Revocations(),  # the core knows the revoked ones, it is asked below
                certificate_pem=renewal.certificate_pem,
                csr_pem=renewal.csr_pem,
                nonce=renewal.nonce,
                signature=renewal.signature,
                now_unix_s=self._now_unix_s(),
            )
        generation = self._core.check_certificate(peer.node_id, peer.serial)
        issued = await self._sign(peer.node_id, generation, renewal.csr_pem)
        log.info("node %s renewed its certificate by its old key", peer.node_id)
        return issued

    async def _sign(self, node_id: str, generation: int, csr_pem: bytes) -> Issued:
        with translated():
            issued = self._authority.sign_node(csr_pem, node_id, self._now_unix_s(), self._life_s)
        await self._core.certificate_issued(Certificate(node_id, issued.serial, generation, issued.not_after_unix_s))
        return issued
