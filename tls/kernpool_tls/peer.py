"""Who is on the other side of a TLS connection, and whether it may come in (coordinator only: needs cryptography)."""

import asyncio
import functools
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, final

from cryptography import x509

from kernpool_tls.errors import NoCertificateError, RevokedError, WrongRoleError
from kernpool_tls.names import Role, Subject, parse_uri


@final
@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """What a certificate says of its holder."""

    subject: Subject
    serial: str
    """Hex."""
    not_before_unix_s: float
    not_after_unix_s: float

    @property
    def node_id(self) -> str:
        """The id in the certificate: a node's (or, for role coordinator, a coordinator's)."""
        return self.subject.id

    @property
    def role(self) -> Role:
        """The role in the certificate."""
        return self.subject.role


@final
class Revocations:
    """Who is refused although the certificate is genuine: removed nodes and replaced certificates.

    The caller loads it from its store at start and tells it of every change; it holds no file of its own.
    """

    __slots__ = ("_node_ids", "_serials")

    def __init__(self, node_ids: Iterable[str] = (), serials: Iterable[str] = ()) -> None:
        self._node_ids = set(node_ids)
        """Removed nodes: every certificate of theirs, past and future, is refused."""
        self._serials = set(serials)
        """Single certificates, as hex: those of a node's former self after it enrolled again."""

    def revoke_node(self, node_id: str) -> None:
        """Refuse every certificate of this node."""
        self._node_ids.add(node_id)

    def revoke_serials(self, serials: Iterable[str]) -> None:
        """Refuse these certificates."""
        self._serials.update(serials)

    def check(self, peer: PeerIdentity) -> None:
        """Raises RevokedError."""
        if peer.node_id in self._node_ids:
            raise RevokedError(
                f"node {peer.node_id} was removed; enrol it again as a new node to bring the machine back"
            )
        if peer.serial in self._serials:
            raise RevokedError(f"node {peer.node_id} shows a certificate that was replaced when it enrolled again")


class HasTransport(Protocol):
    """What of an aiohttp request matters here."""

    @property
    def transport(self) -> asyncio.Transport | None:
        """The connection."""


@functools.lru_cache(maxsize=4096)
def parse_peer(certificate_der: bytes) -> PeerIdentity:
    """The identity in a certificate whose chain the TLS layer has verified. Raises WrongRoleError without our URI."""
    try:
        certificate = x509.load_der_x509_certificate(certificate_der)
        return identity_of(certificate)
    except ValueError:
        raise WrongRoleError("the certificate cannot be read") from None


def identity_of(certificate: x509.Certificate) -> PeerIdentity:
    """The identity in a parsed certificate. Raises WrongRoleError when it carries not exactly one URI of ours."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except x509.ExtensionNotFound:
        uris = []
    subject = parse_uri(uris[0]) if len(uris) == 1 else None
    if subject is None:
        raise WrongRoleError("the certificate names no role in a Kernpool cluster")
    return PeerIdentity(
        subject,
        f"{certificate.serial_number:x}",
        certificate.not_valid_before_utc.timestamp(),
        certificate.not_valid_after_utc.timestamp(),
    )


def peer_identity(ssl_object: ssl.SSLObject | ssl.SSLSocket | None) -> PeerIdentity | None:
    """Who is on the other side; None when it showed no certificate. Raises WrongRoleError."""
    certificate_der = ssl_object.getpeercert(binary_form=True) if ssl_object is not None else None
    return None if certificate_der is None else parse_peer(certificate_der)


def require_peer(request: HasTransport, *, cluster_id: str, role: Role, revocations: Revocations) -> PeerIdentity:
    """The verified peer of an aiohttp request on a listener that asks for certificates.

    Raises NoCertificateError, WrongRoleError (role or cluster), RevokedError.
    """
    transport = request.transport
    peer = peer_identity(transport.get_extra_info("ssl_object") if transport is not None else None)
    if peer is None:
        raise NoCertificateError("this needs a client certificate; the node has to enrol first")
    if peer.subject.cluster_id != cluster_id or peer.role is not role:
        raise WrongRoleError(f"{peer.subject.uri} may not do this: a {role} of cluster {cluster_id} is needed")
    revocations.check(peer)
    return peer
