"""Which way to a node: straight to its own listener or through the coordinator; tried, then remembered per node."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from kernpool.results import Access

TUNNEL_MEMORY_S: Final = 60.0
"""How long a node that could not be reached is spared another try."""
TOKEN_MARGIN_S: Final = 15.0
"""A token is renewed so long before its end: the request still has to get there."""
GRANTS_MAX: Final = 1024


@final
@dataclass(frozen=True, slots=True)
class Direct:
    """Straight to the node."""

    node: str
    url: str
    server_name: str
    ca_pem: str
    token: str

    def __repr__(self) -> str:
        return f"Direct({self.node} at {self.url})"


@final
@dataclass(frozen=True, slots=True)
class Tunnel:
    """Through the coordinator."""


Way = Direct | Tunnel
TUNNEL: Final = Tunnel()


@final
@dataclass(slots=True)
class _Grant:
    access: Access
    expires_at_s: float


@final
class Routes:
    """The memory of one client. No I/O: `known` answers or asks (None) for an Access, `granted` takes it."""

    __slots__ = ("_clock", "_dead_urls", "_grants", "_tunnel_until_s", "_use_direct")

    def __init__(self, *, use_direct: bool, clock: Callable[[], float]) -> None:
        self._use_direct = use_direct
        self._clock = clock
        self._tunnel_until_s: dict[str, float] = {}
        """Node -> until when it is only reached through the coordinator."""
        self._dead_urls: dict[str, set[str]] = {}
        """Node -> its URLs that could not be reached."""
        self._grants: dict[str, _Grant] = {}
        """Object (`sandbox/ID`, `job/ID`) -> the access that was given for it."""

    def known(self, object_: str, node: str) -> Way | None:
        """Give the way, or None where an Access must be asked for first."""
        if not self._use_direct or self._clock() < self._tunnel_until_s.get(node, 0.0):
            return TUNNEL
        grant = self._grants.get(object_)
        if grant is None or self._clock() >= grant.expires_at_s:
            return None
        return self._choose(node, grant.access)

    def granted(self, object_: str, node: str, access: Access) -> Way:
        """Remember an access and give the way."""
        if len(self._grants) >= GRANTS_MAX:
            self._grants.pop(next(iter(self._grants)))
        self._grants[object_] = _Grant(access, self._clock() + access.expires_in_s - TOKEN_MARGIN_S)
        return self._choose(node, access)

    def not_granted(self, node: str) -> Way:
        """Learn that no access could be had: the coordinator is the way for a while."""
        return self._to_tunnel(node)

    def unreachable(self, way: Direct) -> None:
        """Learn that a node's URL cannot be reached from here."""
        self._dead_urls.setdefault(way.node, set()).add(way.url)

    def forget(self, object_: str) -> None:
        """Drop an access that the node refused."""
        self._grants.pop(object_, None)

    def _choose(self, node: str, access: Access) -> Way:
        dead = self._dead_urls.get(node, set())
        for url in access.urls:
            if url not in dead:
                return Direct(node, url, access.server_name, access.ca_pem, access.token)
        return self._to_tunnel(node)

    def _to_tunnel(self, node: str) -> Way:
        self._dead_urls.pop(node, None)  # after the pause every URL is tried again: networks change
        self._tunnel_until_s[node] = self._clock() + TUNNEL_MEMORY_S
        return TUNNEL
