"""Renewal of certificates by proof with the old key: what the coordinator checks, in code, before it signs anew.

A valid certificate renews over the live link. One that expired cannot make a TLS handshake any more, so it renews by an
ordinary POST: old certificate, new request, and the coordinator's nonce signed with the old key (DECISIONS 17).
"""

import base64
import binascii
import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from kernpool_tls.authority import Authority
from kernpool_tls.errors import RateLimitedError, RenewalRefusedError
from kernpool_tls.names import Role
from kernpool_tls.peer import PeerIdentity, Revocations, identity_of
from kernpool_tls.times import CLOCK_SKEW_S_MAX, EXPIRED_RENEWAL_S_MAX, format_utc

NONCE_LIFETIME_S: Final = 60.0
NONCES_MAX: Final = 4096
CERTIFICATE_BYTES_MAX: Final = 16 * 1024


def renewal_statement(nonce: str, csr_pem: bytes) -> bytes:
    """The bytes that the old key signs: this nonce, and this request and no other."""
    return f"kernpool-renew-v1\n{nonce}\n{hashlib.sha256(csr_pem).hexdigest()}\n".encode()


def check_renewal(
    authority: Authority,
    revocations: Revocations,
    *,
    certificate_pem: bytes,
    csr_pem: bytes,
    nonce: str,
    signature: str,
    now_unix_s: float,
) -> PeerIdentity:
    """Who may have a new certificate for `csr_pem`: the holder of a genuine node certificate, expired or not.

    The caller has used up `nonce` in its NonceBook and signs with `authority.sign_node(csr_pem, peer.node_id, ...)`.
    Raises RenewalRefusedError (not ours, not a node's, over for more than 7 days, wrong signature), WrongRoleError,
    RevokedError.
    """
    certificate = _load(certificate_pem)
    if not authority.signed(certificate):
        raise RenewalRefusedError("the old certificate was not issued by this coordinator; enrol with a join token")
    peer = identity_of(certificate)
    if peer.role is not Role.NODE or peer.subject.cluster_id != authority.cluster_id:
        raise RenewalRefusedError(f"only nodes of cluster {authority.cluster_id} renew here, not {peer.subject.uri}")
    revocations.check(peer)
    _check_dates(peer, now_unix_s)
    _check_signature(certificate, renewal_statement(nonce, csr_pem), signature)
    return peer


def _load(certificate_pem: bytes) -> x509.Certificate:
    if len(certificate_pem) > CERTIFICATE_BYTES_MAX:
        raise RenewalRefusedError(f"a certificate of {len(certificate_pem)} bytes exceeds {CERTIFICATE_BYTES_MAX}")
    try:
        return x509.load_pem_x509_certificate(certificate_pem)
    except ValueError:
        raise RenewalRefusedError("the old certificate cannot be read") from None


def _check_dates(peer: PeerIdentity, now_unix_s: float) -> None:
    if now_unix_s > peer.not_after_unix_s + EXPIRED_RENEWAL_S_MAX:
        raise RenewalRefusedError(
            f"the certificate of node {peer.node_id} ended {format_utc(peer.not_after_unix_s)}, more than "
            f"{EXPIRED_RENEWAL_S_MAX // 86400} days before {format_utc(now_unix_s)}; enrol it with a token bound to it"
        )
    if now_unix_s < peer.not_before_unix_s - CLOCK_SKEW_S_MAX:
        raise RenewalRefusedError(
            f"the certificate of node {peer.node_id} begins {format_utc(peer.not_before_unix_s)}, but it is "
            f"{format_utc(now_unix_s)} here; set the coordinator's clock"
        )


def _check_signature(certificate: x509.Certificate, statement: bytes, signature: str) -> None:
    key = certificate.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey), "our authority signs P-256 keys only"
    try:
        key.verify(base64.b64decode(signature, validate=True), statement, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, binascii.Error, ValueError):
        raise RenewalRefusedError("the renewal is not signed by the old certificate's key") from None


@final
class NonceBook:
    """Nonces that were given out and not yet used: each is good once and for a minute. Times are monotonic seconds."""

    __slots__ = ("_issued", "_random_hex")

    def __init__(self, random_hex: Callable[[int], str] = secrets.token_hex) -> None:
        self._random_hex = random_hex
        self._issued: OrderedDict[str, float] = OrderedDict()
        """Nonce -> when it ends, oldest first."""

    def issue(self, now_s: float) -> str:
        """A new nonce. Raises RateLimitedError while NONCES_MAX are out."""
        self._drop_old(now_s)
        if len(self._issued) >= NONCES_MAX:
            raise RateLimitedError("too many renewals at once; try again in a minute")
        nonce = self._random_hex(32)
        self._issued[nonce] = now_s + NONCE_LIFETIME_S
        return nonce

    def use(self, nonce: str, now_s: float) -> None:
        """Use a nonce up. Raises RenewalRefusedError when it was never given out, is used or too old."""
        self._drop_old(now_s)
        if self._issued.pop(nonce, None) is None:
            raise RenewalRefusedError("the nonce is unknown, used or older than a minute; ask for a new one")

    def _drop_old(self, now_s: float) -> None:
        while self._issued:
            nonce, ends_s = next(iter(self._issued.items()))
            if ends_s > now_s:
                return
            del self._issued[nonce]
