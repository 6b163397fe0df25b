"""The node's certificate over time: renewed at half its life over the link, or by proof of the old key once expired.

docs/agent.md has the states (they are those of kernpool_tls.identity). The private key never enters this process: the
key worker makes it, and TLS contexts read the identity file.
"""

import asyncio
import itertools
import logging
import random
import ssl
from collections.abc import Callable
from typing import final

from kernpool_agent.backoff import Backoff
from kernpool_agent.clock import CoordinatorClock
from kernpool_agent.errors import AgentError, EnrolRefusedError, LinkRefusedError, UnreachableError
from kernpool_agent.nodehttp import ask
from kernpool_agent.uplink import Uplink
from kernpool_mesh.messages import CertificateIssued, CertificateRequest
from kernpool_tls.contexts import client_context
from kernpool_tls.errors import IdentityError
from kernpool_tls.identity import Identity, IdentityPhase
from kernpool_tls.keys import NodeKeys
from kernpool_tls.pin import spki_pin

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 30.0
LOOK_S_MAX = 3600.0
"""The clock is looked at least so often: it may be set, and the machine may sleep."""
RETRY_S_MIN = 5.0
RETRY_S_MAX = 600.0


@final
class Renewal:
    """Holds who this node is, and keeps the certificate alive."""

    def __init__(
        self,
        *,
        keys: NodeKeys,
        identity: Identity,
        url: str,
        uplink: Uplink,
        clock: CoordinatorClock,
        timeout_s: float,
        on_renewed: Callable[[], None] = lambda: None,
        rng: random.Random | None = None,
    ) -> None:
        self._keys = keys
        self.identity = identity
        """The certificate that is in force."""
        self._url = url
        self._uplink = uplink
        self._clock = clock
        self._timeout_s = timeout_s
        self.on_renewed = on_renewed
        """Called after each renewal: the data plane's listener takes the new certificate."""
        self._rng = rng or random.Random()  # noqa: S311 - it spreads load, it guards nothing
        self._jitter = self._rng.random()
        """Where in the middle of the certificate's life it is renewed; drawn anew for each."""
        self._request_ids = itertools.count(1)
        self._asked: dict[int, asyncio.Future[CertificateIssued]] = {}
        """Requests over the link that are not answered yet."""
        self._lock = asyncio.Lock()
        """One renewal at a time: the key worker keeps one pending key."""

    async def client_context(self) -> ssl.SSLContext:
        """Return the context for the next dial; an expired certificate is renewed first.

        Raises EnrolRefusedError when it is too old for that, UnreachableError, LinkRefusedError.
        """
        phase = self.identity.phase(self._clock.now_unix_s(), self._jitter)
        if phase is IdentityPhase.DEAD:
            raise EnrolRefusedError(
                f"the certificate of {self.identity.node_id} ended too long ago to be renewed; enrol this node again: "
                "make a join token bound to it and restart the agent with --join-token-file"
            )
        if phase is IdentityPhase.EXPIRED:
            async with self._lock:
                await self._renew_expired()
        return client_context(self.identity.ca_pem, self._keys.identity_file)

    async def run(self) -> None:
        """Renew over the link whenever half of the life is over; runs for ever."""
        backoff = Backoff(RETRY_S_MIN, RETRY_S_MAX, self._rng)
        while True:
            await asyncio.sleep(self._wait_s())
            if self._due() and self._uplink.linked:
                try:
                    async with self._lock:
                        await self._renew_linked()
                    backoff.succeeded()
                    continue
                except (AgentError, IdentityError) as error:
                    log.warning("the certificate could not be renewed, trying again: %s", error)
            if self._due():
                await asyncio.sleep(backoff.next_s())

    def on_issued(self, message: CertificateIssued) -> None:
        """Take the coordinator's answer from the link."""
        asked = self._asked.pop(message.request_id, None)
        if asked is not None and not asked.done():
            asked.set_result(message)

    def _due(self) -> bool:
        phase = self.identity.phase(self._clock.now_unix_s(), self._jitter)
        return phase in (IdentityPhase.DUE, IdentityPhase.EXPIRED)

    def _wait_s(self) -> float:
        left_s = self.identity.renew_at_unix_s(self._jitter) - self._clock.now_unix_s()
        return min(max(left_s, 0.0), LOOK_S_MAX)

    async def _renew_linked(self) -> None:
        request_id = next(self._request_ids)
        answer: asyncio.Future[CertificateIssued] = asyncio.get_running_loop().create_future()
        self._asked[request_id] = answer
        try:
            csr_pem = await self._keys.new_request()
            if not self._uplink.tell(CertificateRequest(request_id, csr_pem)):
                raise UnreachableError("the link is gone")
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                issued = await answer
        except TimeoutError:
            raise UnreachableError(f"the coordinator did not answer within {ANSWER_TIMEOUT_S:g} s") from None
        finally:
            self._asked.pop(request_id, None)
        if issued.error:
            raise LinkRefusedError(issued.error)
        await self._accept(issued.certificate_pem, issued.ca_pem)

    async def _renew_expired(self) -> None:
        """Renew by an ordinary request: TLS would refuse the expired certificate itself."""
        context = client_context(self.identity.ca_pem)
        base = f"{self._url}/node/v1"
        csr_pem = await self._keys.new_request()
        nonce = str((await ask("GET", f"{base}/nonce", context, timeout_s=self._timeout_s)).get("nonce", ""))
        body = {
            "certificate_pem": self.identity.certificate_pem,
            "csr_pem": csr_pem.decode(),
            "nonce": nonce,
            "signature": await self._keys.sign_renewal(csr_pem, nonce),
        }
        answer = await ask("POST", f"{base}/renew", context, body, timeout_s=self._timeout_s)
        await self._accept(answer.get("certificate_pem", "").encode(), answer.get("ca_pem", "").encode())

    async def _accept(self, certificate_pem: bytes, ca_pem: bytes) -> None:
        pin = spki_pin(ssl.PEM_cert_to_DER_cert(self.identity.ca_pem))
        self.identity = await self._keys.accept(certificate_pem, ca_pem, pin)
        self._jitter = self._rng.random()
        log.info("the certificate was renewed")
        self.on_renewed()
