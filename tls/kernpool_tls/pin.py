"""The pin of an authority: SHA-256 of its certificate's SubjectPublicKeyInfo, as hex; needs only the DER bytes."""

import hashlib
import hmac
import ssl
from typing import Final

from kernpool_tls.errors import PinMismatchError

PIN_PREFIX: Final = "sha256:"
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0


def spki_pin(certificate_der: bytes) -> str:
    """`sha256:HEX` of a certificate's public key. Raises ValueError for bytes that are no certificate."""
    certificate = _content(certificate_der, 0, _SEQUENCE)
    position = _content(certificate_der, certificate[0], _SEQUENCE)[0]
    if certificate_der[position : position + 1] == bytes([_VERSION]):
        position = _end(certificate_der, position)
    for _ in ("serial", "signature", "issuer", "validity", "subject"):
        position = _end(certificate_der, position)
    _content(certificate_der, position, _SEQUENCE)
    return PIN_PREFIX + hashlib.sha256(certificate_der[position : _end(certificate_der, position)]).hexdigest()


def find_pinned(chain_der: list[bytes], pin: str) -> str:
    """The PEM of the chain's certificate that has this pin. Raises PinMismatchError when none has."""
    for certificate_der in chain_der:
        try:
            found = spki_pin(certificate_der)
        except ValueError:
            continue
        if hmac.compare_digest(found, pin):
            return ssl.DER_cert_to_PEM_cert(certificate_der)
    raise PinMismatchError(
        "the server's authority is not the one that the join token pins: it is another coordinator, or somebody "
        "stands in between; check the address and ask for a new token"
    )


def _length(der: bytes, position: int) -> tuple[int, int]:
    """(first byte of the content, its size) of the element at `position`."""
    if position + 2 > len(der):
        raise ValueError("not a certificate: it ends within an element")
    first = der[position + 1]
    if first < 0x80:
        start, size = position + 2, first
    else:
        width = first & 0x7F
        start = position + 2 + width
        if not 1 <= width <= 4 or start > len(der):
            raise ValueError("not a certificate: bad length")
        size = int.from_bytes(der[position + 2 : start], "big")
    if start + size > len(der):
        raise ValueError("not a certificate: it ends within an element")
    return start, size


def _content(der: bytes, position: int, tag: int) -> tuple[int, int]:
    if der[position : position + 1] != bytes([tag]):
        raise ValueError("not a certificate: unexpected element")
    return _length(der, position)


def _end(der: bytes, position: int) -> int:
    start, size = _length(der, position)
    return start + size
