"""The authority: what it signs, for whom, and how its key rests."""

import base64
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from kernpool_tls.authority import Authority, Issued
from kernpool_tls.errors import InsecureFileError, RequestRefusedError, SealError
from kernpool_tls.names import Role
from kernpool_tls.peer import identity_of
from kernpool_tls.pin import spki_pin
from kernpool_tls.sealing import Sealer

if TYPE_CHECKING:
    from tests.tls.conftest import MakeKey, NodeFiles

NODE_ID = "n-abcdefghijkl"
HOUR_S = 3600
CSR_HEAD = b"-----BEGIN CERTIFICATE REQUEST-----\n"
CSR_TAIL = b"-----END CERTIFICATE REQUEST-----\n"


def certificate_of(issued: Issued) -> x509.Certificate:
    return x509.load_pem_x509_certificate(issued.certificate_pem)


def test_a_node_certificate_says_role_id_and_cluster_and_lives_a_day(authority: Authority, make_key: "MakeKey") -> None:
    """A node enrols: its certificate must carry the SPIFFE URI and the DNS name that clients ask for."""
    now = time.time()
    issued = authority.sign_node(make_key().csr_pem, NODE_ID, now)
    certificate = certificate_of(issued)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [f"spiffe://kp-test/node/{NODE_ID}"]
    assert names.get_values_for_type(x509.DNSName) == [f"{NODE_ID}.node.kernpool.internal"]
    assert abs(issued.not_after_unix_s - (now + 24 * HOUR_S)) <= 1
    assert abs(issued.not_before_unix_s - (now - HOUR_S)) <= 1, "backdated by an hour, because clocks differ"
    assert authority.signed(certificate)
    assert int(issued.serial, 16) == certificate.serial_number


def test_the_subject_that_a_request_forges_is_ignored(authority: Authority, make_key: "MakeKey") -> None:
    """A stolen join token is used with a request that names the coordinator: only its key may count."""
    forged = make_key(common_name="coordinator", alternative_uri="spiffe://kp-test/coordinator/c-1")
    peer = identity_of(certificate_of(authority.sign_node(forged.csr_pem, NODE_ID, time.time())))
    assert (peer.role, peer.node_id) == (Role.NODE, NODE_ID)


def test_a_request_that_its_own_key_did_not_sign_is_refused(authority: Authority, make_key: "MakeKey") -> None:
    """Somebody asks for a certificate for a key that he does not hold."""
    der = bytearray(x509.load_pem_x509_csr(make_key().csr_pem).public_bytes(Encoding.DER))
    der[-1] ^= 1
    pem = CSR_HEAD + base64.encodebytes(bytes(der)) + CSR_TAIL
    with pytest.raises(RequestRefusedError):
        authority.sign_node(pem, NODE_ID, time.time())


@pytest.mark.parametrize("csr", [b"", b"hello", CSR_HEAD + b"AA==\n" + CSR_TAIL])
def test_a_damaged_request_is_refused(authority: Authority, csr: bytes) -> None:
    """A client sends rubbish to the enrolment endpoint."""
    with pytest.raises(RequestRefusedError, match="cannot be read"):
        authority.sign_node(csr, NODE_ID, time.time())


def test_an_oversized_request_is_refused_unread(authority: Authority) -> None:
    """A client sends a megabyte where a kilobyte belongs."""
    with pytest.raises(RequestRefusedError, match="exceeds"):
        authority.sign_node(b"x" * 100_000, NODE_ID, time.time())


def test_a_request_for_another_kind_of_key_is_refused(authority: Authority, make_key: "MakeKey") -> None:
    """A node asks with a curve that the renewal proof does not know."""
    with pytest.raises(RequestRefusedError, match="P-256"):
        authority.sign_node(make_key(curve=ec.SECP384R1()).csr_pem, NODE_ID, time.time())


@pytest.mark.parametrize("node_id", ["", "n/../coordinator/x", "N-UPPER", "n-x y", "n-" + "a" * 80])
def test_an_id_that_could_be_read_as_another_name_is_refused(
    authority: Authority, make_key: "MakeKey", node_id: str
) -> None:
    """A bug hands an id with a slash to the authority: it must not become another role's URI."""
    with pytest.raises(ValueError, match="cannot stand in a certificate"):
        authority.sign_node(make_key().csr_pem, node_id, time.time())


def test_the_same_authority_comes_back_after_a_restart(tmp_path: Path, sealer: Sealer, authority: Authority) -> None:
    """The coordinator restarts: nodes that pinned its authority must still find it."""
    again = Authority.open(tmp_path / "ca", Sealer.from_file(tmp_path / "key"), "kp-test", time.time())
    assert again.pin == authority.pin
    assert again.certificate_pem == authority.certificate_pem
    assert again.pin == spki_pin(x509.load_pem_x509_certificate(again.certificate_pem).public_bytes(Encoding.DER))


def test_the_authority_does_not_open_with_another_key_file(tmp_path: Path, authority: Authority) -> None:
    """The state directory was restored from a backup without its key file."""
    with pytest.raises(SealError, match="another key"):
        Authority.open(tmp_path / "ca", Sealer.from_file(tmp_path / "new-key"), "kp-test", time.time())


def test_the_authority_of_another_cluster_is_refused(tmp_path: Path, sealer: Sealer, authority: Authority) -> None:
    """Two state directories were mixed up."""
    with pytest.raises(SealError, match="belongs to cluster kp-test"):
        Authority.open(tmp_path / "ca", sealer, "kp-other", time.time())


def test_what_is_secret_is_written_for_its_owner_only(tmp_path: Path, authority: Authority, server_file: Path) -> None:
    """Other users of the machine look around in the state directory."""
    assert stat.S_IMODE((tmp_path / "ca").stat().st_mode) == 0o700
    for path in (tmp_path / "key", tmp_path / "ca" / "authority", server_file):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert not list(tmp_path.rglob(".*")), "no temporary file stays"


def test_the_authority_key_is_nowhere_in_the_clear(tmp_path: Path, authority: Authority) -> None:
    """Somebody copies the state directory without the key file."""
    assert b"PRIVATE KEY" not in (tmp_path / "ca" / "authority").read_bytes()
    key_der = authority._key.private_numbers().private_value.to_bytes(32, "big")
    assert key_der not in (tmp_path / "ca" / "authority").read_bytes()


def test_a_key_file_that_others_may_read_is_refused(tmp_path: Path, authority: Authority) -> None:
    """An admin copied the key file with mode 0644: the person is told what to type."""
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(InsecureFileError, match="chmod 600"):
        Sealer.from_file(tmp_path / "key")


def test_a_damaged_key_file_is_told(tmp_path: Path, sealer: Sealer) -> None:
    """A disk fault or an editor touched the key file."""
    (tmp_path / "key").write_bytes(b"kpk1.zzzz")
    with pytest.raises(SealError, match="backup"):
        Sealer.from_file(tmp_path / "key")


def test_a_sealed_secret_opens_only_under_its_name(sealer: Sealer) -> None:
    """Somebody with write access to the database swaps two sealed secrets."""
    sealed = sealer.seal("secret/a", b"one")
    assert sealer.open("secret/a", sealed) == b"one"
    with pytest.raises(SealError):
        sealer.open("secret/b", sealed)
    with pytest.raises(SealError):
        sealer.open("secret/a", sealed[:-1] + bytes([sealed[-1] ^ 1]))


def test_no_repr_shows_a_key_or_a_certificate(authority: Authority, sealer: Sealer, node: "NodeFiles") -> None:
    """An exception with local variables ends in a log."""
    for thing in (authority, sealer, node.issued):
        text = repr(thing)
        assert "BEGIN" not in text
        assert len(text) < 300
