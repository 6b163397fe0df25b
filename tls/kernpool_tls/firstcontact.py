"""The first contact with a coordinator: learn its authority's certificate, trusting only the join token's pin."""

import asyncio
import contextlib
import ssl
from typing import Any

from kernpool_tls.contexts import first_contact_context
from kernpool_tls.errors import FirstContactError
from kernpool_tls.pin import find_pinned


async def fetch_authority(host: str, port: int, pin: str, *, timeout_s: float = 10.0) -> str:
    """The PEM of the authority that `pin` (`sha256:HEX`) names, from the chain that the server shows.

    Nothing is sent but the handshake; connect anew with `client_context(pem)` before saying anything. Raises
    PinMismatchError, FirstContactError when there is no TLS 1.3 server in time.
    """
    try:
        async with asyncio.timeout(timeout_s):
            chain_der = await _fetch_chain(host, port)
    except TimeoutError:
        raise FirstContactError(f"{host}:{port} did not answer within {timeout_s:.0f} s") from None
    except OSError as error:
        raise FirstContactError(f"cannot reach a coordinator at {host}:{port}: {error}") from None
    return find_pinned(chain_der, pin)


async def _fetch_chain(host: str, port: int) -> list[bytes]:
    _reader, writer = await asyncio.open_connection(host, port, ssl=first_contact_context())
    try:
        return _shown_chain(writer.get_extra_info("ssl_object"))
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _shown_chain(ssl_object: Any) -> list[bytes]:
    """The certificates that the server sent, DER, its own first. Public since Python 3.13; before, one layer below."""
    if hasattr(ssl_object, "get_unverified_chain"):
        return [bytes(certificate) for certificate in ssl_object.get_unverified_chain()]
    shown = ssl_object._sslobj.get_unverified_chain() or []
    return [ssl.PEM_cert_to_DER_cert(certificate.public_bytes()) for certificate in shown]
