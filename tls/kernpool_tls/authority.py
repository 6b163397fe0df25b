"""The cluster's own certificate authority: one P-256 key, sealed at rest, that signs nodes and coordinators.

Of a certificate request only the key and the proof of its possession count (DECISIONS 16); who the certificate is for
is said by the caller. Certificates are backdated by an hour because clocks differ.
"""

import datetime
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kernpool_tls.errors import RequestRefusedError, SealError
from kernpool_tls.files import create_private, make_private_directory, read_private, write_private
from kernpool_tls.names import COORDINATOR_DNS_NAME, Role, Subject, parse_uri
from kernpool_tls.pin import spki_pin
from kernpool_tls.sealing import Sealer
from kernpool_tls.times import AUTHORITY_LIFETIME_S, BACKDATE_S, NODE_LIFETIME_S, SERVER_LIFETIME_S

REQUEST_BYTES_MAX: Final = 16 * 1024
_KEY_NAME: Final = "authority-key"


@final
@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate that was just signed."""

    subject: Subject
    serial: str
    """Hex; what a revocation names."""
    not_before_unix_s: float
    not_after_unix_s: float
    certificate_pem: bytes = field(repr=False)


@final
class Authority:
    """Signs certificates; made once per cluster and opened by every coordinator that holds the key file."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._key = key
        self._certificate = certificate
        self.cluster_id = _cluster_of(certificate)
        self.certificate_pem = certificate.public_bytes(Encoding.PEM)
        """What nodes trust; public."""
        self.pin = spki_pin(certificate.public_bytes(Encoding.DER))
        """`sha256:HEX`, as join tokens carry it."""

    def __repr__(self) -> str:
        return f"<Authority of {self.cluster_id}, {self.pin}>"

    @classmethod
    def open(cls, directory: Path, sealer: Sealer, cluster_id: str, now_unix_s: float) -> "Authority":
        """The authority of `directory`, made at the first use for `cluster_id`.

        Raises SealError for a wrong key file or a directory of another cluster, InsecureFileError, OSError.
        """
        make_private_directory(directory)
        path = directory / "authority"
        if not path.exists():
            create_private(path, cls._create(cluster_id, now_unix_s)._sealed(sealer))
        certificate_der, key_der = _unpack(sealer.open(_KEY_NAME, read_private(path)))
        key = load_der_private_key(key_der, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        authority = cls(key, x509.load_der_x509_certificate(certificate_der))
        if authority.cluster_id != cluster_id:
            raise SealError(f"{path} belongs to cluster {authority.cluster_id}, not to {cluster_id}")
        return authority

    @classmethod
    def _create(cls, cluster_id: str, now_unix_s: float) -> "Authority":
        key = ec.generate_private_key(ec.SECP256R1())
        subject = Subject(cluster_id, Role.COORDINATOR, "authority")
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Kernpool authority {cluster_id}")])
        builder = _builder(key.public_key(), name, name, now_unix_s, AUTHORITY_LIFETIME_S)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_key_usage(authority=True), critical=True)
        builder = builder.add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(subject.uri)]), critical=False
        )
        return cls(key, builder.sign(key, hashes.SHA256()))

    def sign_node(self, csr_pem: bytes, node_id: str, now_unix_s: float, lifetime_s: float = NODE_LIFETIME_S) -> Issued:
        """A node certificate for the key of a request; its names and wishes are ignored.

        Raises RequestRefusedError for a damaged or unsigned request or a key that is not P-256.
        """
        subject = Subject(self.cluster_id, Role.NODE, node_id)
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        return self._issue(_key_of_request(csr_pem), subject, [], usages, now_unix_s, lifetime_s)

    def sign_server(
        self,
        coordinator_id: str,
        names: Iterable[str],
        path: Path,
        now_unix_s: float,
        lifetime_s: float = SERVER_LIFETIME_S,
    ) -> Issued:
        """A new key and certificate for a coordinator's listeners, written with the authority's own (mode 0600).

        `names` are host names and addresses that people type; agents ask for COORDINATOR_DNS_NAME, which is always in.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = Subject(self.cluster_id, Role.COORDINATOR, coordinator_id)
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        issued = self._issue(key.public_key(), subject, names, usages, now_unix_s, lifetime_s)
        key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_private(path, key_pem + issued.certificate_pem + self.certificate_pem)
        return issued

    def signed(self, certificate: x509.Certificate) -> bool:
        """Whether this authority issued the certificate (its dates are another question)."""
        try:
            certificate.verify_directly_issued_by(self._certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True

    def _issue(
        self,
        key: ec.EllipticCurvePublicKey,
        subject: Subject,
        names: Iterable[str],
        usages: list[x509.ObjectIdentifier],
        now_unix_s: float,
        lifetime_s: float,
    ) -> Issued:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject.id)])
        builder = _builder(key, name, self._certificate.subject, now_unix_s, lifetime_s)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_key_usage(authority=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        builder = builder.add_extension(_alternative_names(subject, names), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = builder.add_extension(issuer, critical=False).sign(self._key, hashes.SHA256())
        return Issued(
            subject,
            f"{certificate.serial_number:x}",
            certificate.not_valid_before_utc.timestamp(),
            certificate.not_valid_after_utc.timestamp(),
            certificate.public_bytes(Encoding.PEM),
        )

    def _sealed(self, sealer: Sealer) -> bytes:
        key_der = self._key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
        certificate_der = self._certificate.public_bytes(Encoding.DER)
        return sealer.seal(_KEY_NAME, len(certificate_der).to_bytes(4, "big") + certificate_der + key_der)


def _unpack(secret: bytes) -> tuple[bytes, bytes]:
    size = int.from_bytes(secret[:4], "big")
    return secret[4 : 4 + size], secret[4 + size :]


def _builder(
    key: ec.EllipticCurvePublicKey, name: x509.Name, issuer: x509.Name, now_unix_s: float, lifetime_s: float
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_utc(now_unix_s - BACKDATE_S))
        .not_valid_after(_utc(now_unix_s + lifetime_s))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _utc(unix_s: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(int(unix_s), datetime.UTC)


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative_names(subject: Subject, names: Iterable[str]) -> x509.SubjectAlternativeName:
    entries: list[x509.GeneralName] = [
        x509.UniformResourceIdentifier(subject.uri),
        x509.DNSName(subject.dns_name),
    ]
    for name in dict.fromkeys(names):
        if name == COORDINATOR_DNS_NAME:
            continue
        try:
            entries.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            entries.append(x509.DNSName(name))
    return x509.SubjectAlternativeName(entries)


def check_request(csr_pem: bytes) -> None:
    """Raises RequestRefusedError for a request that `sign_node` would refuse: before a join token is used up for it."""
    _key_of_request(csr_pem)


def _key_of_request(csr_pem: bytes) -> ec.EllipticCurvePublicKey:
    if len(csr_pem) > REQUEST_BYTES_MAX:
        raise RequestRefusedError(f"a certificate request of {len(csr_pem)} bytes exceeds {REQUEST_BYTES_MAX}")
    try:
        request = x509.load_pem_x509_csr(csr_pem)
        genuine = request.is_signature_valid
        key = request.public_key()
    except ValueError:
        raise RequestRefusedError("the certificate request cannot be read") from None
    if not genuine:
        raise RequestRefusedError("the certificate request is not signed by its own key")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise RequestRefusedError("the certificate request is for a key that is not P-256")
    return key


def _cluster_of(certificate: x509.Certificate) -> str:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    (uri,) = names.get_values_for_type(x509.UniformResourceIdentifier)
    subject = parse_uri(uri)
    if subject is None:
        raise SealError("the authority's certificate names no cluster")
    return subject.cluster_id
