"""TLS contexts: version 1.3 only, our own authority only, nothing from the environment.

No context loads the system's authorities, so SSL_CERT_FILE and SSL_CERT_DIR change nothing. On coordinators run the
event loop of uvloop: asyncio's own TLS costs 290 KiB per connection (its buffer of 256 KiB), uvloop's 36 KiB, and a
coordinator holds ten thousand of them.
"""

import ssl
from pathlib import Path

from kernpool_tls.errors import IdentityFileError


def node_listener_context(server_file: Path, ca_pem: bytes | str) -> ssl.SSLContext:
    """The coordinator's listener for nodes: a client certificate is asked for and verified, but not demanded.

    Enrolment and renewal come without one; whatever needs one calls `peer.require_peer`. `server_file` is what
    `Authority.sign_server` wrote: key, certificate and the authority's certificate, which first contacts look for.
    """
    context = _server_context(server_file)
    context.load_verify_locations(cadata=_text(ca_pem))
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


def api_listener_context(server_file: Path) -> ssl.SSLContext:
    """The coordinator's listener for people and programs, who show bearer tokens: no client certificates."""
    return _server_context(server_file)


def data_plane_listener_context(identity_file: Path) -> ssl.SSLContext:
    """The agent's own listener, under its node certificate; clients show data tokens."""
    return _server_context(identity_file)


def client_context(ca_pem: bytes | str, identity_file: Path | None = None) -> ssl.SSLContext:
    """Dials our own servers: trusts our authority alone and demands the name given as server_hostname.

    To a coordinator pass server_hostname=COORDINATOR_DNS_NAME, to a node `node_dns_name(node_id)`, whatever the address
    is. `identity_file` holds the key and certificate to show.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context)
    context.load_verify_locations(cadata=_text(ca_pem))
    if identity_file is not None:
        _load_identity(context, identity_file)
    return context


def first_contact_context() -> ssl.SSLContext:
    """Verifies nothing: only to fetch a chain whose pin is then checked. Nothing secret may travel under it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def reload_certificate(context: ssl.SSLContext, identity_file: Path) -> None:
    """Show the renewed certificate from the next handshake on; standing connections stay. Raises IdentityFileError."""
    _load_identity(context, identity_file)


def _server_context(identity_file: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _harden(context)
    # A resumed session would show a certificate that was checked long ago; agents connect rarely, tickets gain nothing.
    context.num_tickets = 0
    _load_identity(context, identity_file)
    return context


def _harden(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT


def _load_identity(context: ssl.SSLContext, path: Path) -> None:
    try:
        context.load_cert_chain(path)
    except ssl.SSLError as error:
        raise IdentityFileError(f"{path} holds no key with its certificate: {error.reason or error}") from None


def _text(pem: bytes | str) -> str:
    return pem.decode("ascii") if isinstance(pem, bytes) else pem
