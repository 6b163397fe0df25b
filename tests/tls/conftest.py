"""One authority, a server identity and an enrolled node, made as the coordinator and the agent make them."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from kernpool_tls.authority import Authority, Issued
from kernpool_tls.sealing import Sealer

CLUSTER_ID = "kp-test"
NODE_ID = "n-abcdefghijkl"


@dataclass
class Key:
    """A private key with a request for it, as a node's key worker makes them."""

    private: ec.EllipticCurvePrivateKey
    csr_pem: bytes

    @property
    def pem(self) -> bytes:
        return self.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def make_key(common_name: str = "", alternative_uri: str = "", curve: ec.EllipticCurve | None = None) -> Key:
    private = ec.generate_private_key(curve or ec.SECP256R1())
    names = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)] if common_name else []
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(names))
    if alternative_uri:
        extension = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(alternative_uri)])
        builder = builder.add_extension(extension, critical=False)
    return Key(private, builder.sign(private, hashes.SHA256()).public_bytes(Encoding.PEM))


class MakeKey(Protocol):
    def __call__(
        self, common_name: str = "", alternative_uri: str = "", curve: ec.EllipticCurve | None = None
    ) -> Key: ...


@dataclass
class NodeFiles:
    """A node with a certificate, and the file its TLS contexts load."""

    key: Key
    issued: Issued
    path: Path


def enrol(authority: Authority, directory: Path, node_id: str = NODE_ID, now_unix_s: float | None = None) -> NodeFiles:
    key = make_key()
    issued = authority.sign_node(key.csr_pem, node_id, time.time() if now_unix_s is None else now_unix_s)
    path = directory / f"{node_id}.pem"
    path.write_bytes(key.pem + issued.certificate_pem + authority.certificate_pem)
    return NodeFiles(key, issued, path)


class Enrol(Protocol):
    def __call__(
        self, authority: Authority, directory: Path, node_id: str = NODE_ID, now_unix_s: float | None = None
    ) -> NodeFiles: ...


@pytest.fixture(name="make_key")
def make_key_fixture() -> MakeKey:
    return make_key


@pytest.fixture(name="enrol")
def enrol_fixture() -> Enrol:
    return enrol


@pytest.fixture
def sealer(tmp_path: Path) -> Sealer:
    return Sealer.from_file(tmp_path / "key")


@pytest.fixture
def authority(tmp_path: Path, sealer: Sealer) -> Authority:
    return Authority.open(tmp_path / "ca", sealer, CLUSTER_ID, time.time())


@pytest.fixture
def foreign_authority(tmp_path: Path) -> Authority:
    return Authority.open(tmp_path / "other-ca", Sealer.from_file(tmp_path / "other-key"), CLUSTER_ID, time.time())


@pytest.fixture
def server_file(tmp_path: Path, authority: Authority) -> Path:
    path = tmp_path / "server.pem"
    authority.sign_server("c-1", ["localhost", "127.0.0.1"], path, time.time())
    return path


@pytest.fixture
def node(tmp_path: Path, authority: Authority) -> NodeFiles:
    return enrol(authority, tmp_path)
