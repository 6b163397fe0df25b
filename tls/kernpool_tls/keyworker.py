"""The short-lived child that makes keys, signs and accepts certificates, so the agent never loads cryptography.

`python -m kernpool_tls.keyworker`: one JSON object on stdin ({"op", "directory", ...}), one on stdout ({"ok": ...} or
{"error": {"code", "message"}}). Keys stay in files of the directory (0600); none is ever on a pipe or in argv.
"""

import base64
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from kernpool_tls.errors import IdentityError, KeyWorkerError, PinMismatchError, WrongRoleError
from kernpool_tls.files import make_private_directory, read_private, write_private
from kernpool_tls.identity import Identity, load_key_pem, save
from kernpool_tls.keys import IDENTITY_FILE, PENDING_FILE
from kernpool_tls.names import Role
from kernpool_tls.peer import identity_of
from kernpool_tls.pin import spki_pin
from kernpool_tls.renewal import renewal_statement

REQUEST_BYTES_MAX: Final = 256 * 1024


def new_request(directory: Path, _request: dict[str, Any]) -> dict[str, Any]:
    """Make the next key, keep it as pending, and ask for a certificate for it."""
    make_private_directory(directory)
    key = ec.generate_private_key(ec.SECP256R1())
    write_private(directory / PENDING_FILE, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    return {"csr_pem": request.public_bytes(Encoding.PEM).decode()}


def accept(directory: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Check a certificate against the pending key, the authority and its pin, and make it the node's identity."""
    key_pem = read_private(directory / PENDING_FILE)
    certificate = x509.load_pem_x509_certificate(request["certificate_pem"].encode())
    authority = x509.load_pem_x509_certificate(request["ca_pem"].encode())
    if spki_pin(authority.public_bytes(Encoding.DER)) != request["pin"]:
        raise PinMismatchError("the certificate came with another authority than the pinned one")
    certificate.verify_directly_issued_by(authority)
    if _public_bytes(certificate.public_key()) != _public_bytes(load_pem_private_key(key_pem, None).public_key()):
        raise KeyWorkerError("the certificate is for another key than the one that was asked for")
    peer = identity_of(certificate)
    if peer.role is not Role.NODE:
        raise WrongRoleError(f"the certificate is for {peer.subject.uri}, not for a node")
    identity = Identity(
        node_id=peer.node_id,
        cluster_id=peer.subject.cluster_id,
        serial=peer.serial,
        not_before_unix_s=peer.not_before_unix_s,
        not_after_unix_s=peer.not_after_unix_s,
        certificate_pem=certificate.public_bytes(Encoding.PEM).decode(),
        ca_pem=authority.public_bytes(Encoding.PEM).decode(),
    )
    save(directory / IDENTITY_FILE, identity, key_pem.decode())
    (directory / PENDING_FILE).unlink()
    return {}


def sign_renewal(directory: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Sign the coordinator's nonce and the new request with the key of the identity that is to be replaced."""
    key = load_pem_private_key(load_key_pem(directory / IDENTITY_FILE).encode(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    statement = renewal_statement(request["nonce"], request["csr_pem"].encode())
    return {"signature": base64.b64encode(key.sign(statement, ec.ECDSA(hashes.SHA256()))).decode()}


def _public_bytes(key: Any) -> bytes:
    return bytes(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))


_OPERATIONS: Final[dict[str, Callable[[Path, dict[str, Any]], dict[str, Any]]]] = {
    "new_request": new_request,
    "accept": accept,
    "sign_renewal": sign_renewal,
}


def answer(text: bytes) -> dict[str, Any]:
    """The answer to one request; failures are told by name and sentence, which never hold a secret."""
    try:
        request = json.loads(text)
        return {"ok": _OPERATIONS[request["op"]](Path(request["directory"]), request)}
    except IdentityError as error:
        return {"error": {"code": error.code, "message": str(error)}}
    except OSError as error:
        return {"error": {"code": KeyWorkerError.code, "message": f"{error.strerror}: {error.filename}"}}
    except Exception as error:  # noqa: BLE001 - foreign texts may quote what they could not read: only the name is told
        return {"error": {"code": KeyWorkerError.code, "message": f"the request failed: {type(error).__name__}"}}


def main() -> None:
    """Answer one request from stdin."""
    result = answer(sys.stdin.buffer.read(REQUEST_BYTES_MAX))
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main()
