"""One server as a client sees it: address, path prefix, how its TLS is checked, and the token it wants."""

from dataclasses import dataclass, field
from typing import Final, final
from urllib.parse import urlsplit

from kernpool import __version__
from kernpool.endpoint import Endpoint, check_url
from kernpool.errors import KernpoolError, ProtocolError
from kernpool.protocol.routes import Direct

USER_AGENT: Final = f"kernpool/{__version__}"
CONTENT_TYPE_JSON: Final = "application/json"


@final
@dataclass(frozen=True, slots=True)
class Origin:
    """Where requests go; equal origins may share connections."""

    is_tls: bool
    host: str
    port: int
    prefix: str
    """In front of every path: `/api/v1` at a coordinator, `/v1` at a node."""
    token: str = field(repr=False)
    server_name: str = ""
    """Name the certificate must have; empty: the host."""
    ca_pem: str = field(default="", repr=False)
    """The only authority that counts; empty: `ca_file`, else those of the system."""
    ca_file: str = ""
    is_node: bool = False

    @property
    def address(self) -> tuple[bool, str, int, str, str, str]:
        """What must be equal for a connection to be shared; the token is no part of it."""
        return (self.is_tls, self.host, self.port, self.server_name, self.ca_pem, self.ca_file)

    @property
    def url(self) -> str:
        """Its address as people read it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}"

    @property
    def host_header(self) -> str:
        """Value of the Host header."""
        host = self.server_name or (f"[{self.host}]" if ":" in self.host else self.host)
        return f"{host}:{self.port}"

    def headers(self, content_type: str | None = None, length: int | None = None) -> list[tuple[str, str]]:
        """Give the headers of a request with this body; length None with a content type: chunked."""
        given = [("Host", self.host_header), ("Authorization", f"Bearer {self.token}"), ("User-Agent", USER_AGENT)]
        if content_type is not None:
            given.append(("Content-Type", content_type))
            given.append(("Transfer-Encoding", "chunked") if length is None else ("Content-Length", str(length)))
        elif length is not None:
            given.append(("Content-Length", str(length)))
        return given


def coordinator_origin(endpoint: Endpoint) -> Origin:
    """Give the origin of the coordinator's API. Raises KernpoolError for a token that no server gave."""
    if not endpoint.token.isascii() or not endpoint.token.isprintable():
        raise KernpoolError("The API's token has characters that no token has: is it cut or pasted twice?")
    parts = urlsplit(endpoint.url)
    is_tls = parts.scheme == "https"
    return Origin(
        is_tls=is_tls,
        host=parts.hostname or "",
        port=parts.port or (443 if is_tls else 80),
        prefix=f"{parts.path.rstrip('/')}/api/v1",
        token=endpoint.token,
        ca_file=endpoint.ca_file or "",
    )


def node_origin(way: Direct) -> Origin:
    """Give the origin of a node's own listener. Raises ProtocolError where its identity could not be checked."""
    parts = check_url(way.url, "the node's URL")
    if parts.scheme != "https" or not way.server_name or not way.ca_pem:
        raise ProtocolError(f"the coordinator named {way.url} for a node without the means to check who answers there")
    return Origin(
        is_tls=True,
        host=parts.hostname or "",
        port=parts.port or 443,
        prefix="/v1",
        token=way.token,
        server_name=way.server_name,
        ca_pem=way.ca_pem,
        is_node=True,
    )
