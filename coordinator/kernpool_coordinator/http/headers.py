"""Which headers pass between a client and a node's data plane: a list of what may, in each direction."""

from collections.abc import Iterable
from typing import Final

from multidict import CIMultiDict

REQUEST_HEADERS: Final = frozenset(
    {
        b"accept",
        b"accept-encoding",
        b"content-type",
        b"if-match",
        b"if-modified-since",
        b"if-none-match",
        b"if-unmodified-since",
        b"range",
        b"user-agent",
    }
)
UPGRADE_HEADERS: Final = frozenset(
    {
        b"sec-websocket-extensions",
        b"sec-websocket-key",
        b"sec-websocket-protocol",
        b"sec-websocket-version",
    }
)
ANSWER_HEADERS: Final = frozenset(
    {
        b"accept-ranges",
        b"cache-control",
        b"content-disposition",
        b"content-encoding",
        b"content-length",
        b"content-range",
        b"content-type",
        b"etag",
        b"kp-log-fence",
        b"kp-log-offset",
        b"last-modified",
        b"retry-after",
        b"sec-websocket-accept",
        b"sec-websocket-extensions",
        b"sec-websocket-protocol",
    }
)


def to_node(raw: Iterable[tuple[bytes, bytes]], *, upgrade: bool) -> list[tuple[bytes, bytes]]:
    """The request headers that a node gets: no token, no cookie, nothing about hops, nothing that names an actor."""
    allowed = REQUEST_HEADERS | UPGRADE_HEADERS if upgrade else REQUEST_HEADERS
    headers = [(name, value) for name, value in raw if name.lower() in allowed]
    if upgrade:
        headers += [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")]
    return headers


def to_client(raw: Iterable[tuple[bytes, bytes]], *, upgrade: bool) -> CIMultiDict[str]:
    """The answer headers that a client gets: a node can set no cookie, redirect nowhere, and frame nothing."""
    headers: CIMultiDict[str] = CIMultiDict()
    for name, value in raw:
        if name.lower() in ANSWER_HEADERS:
            headers.add(name.decode("ascii", "replace"), value.decode("utf-8", "surrogateescape"))
    # What a sandbox wrote must not become a page of the API's origin.
    headers["X-Content-Type-Options"] = "nosniff"
    headers["Content-Security-Policy"] = "sandbox"
    if upgrade:
        headers["Connection"] = "Upgrade"
        headers["Upgrade"] = "websocket"
    return headers
