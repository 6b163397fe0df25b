"""Names in certificates: a SPIFFE URI says role and id, a DNS name lets clients ask for exactly one node by TLS."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, final

COORDINATOR_DNS_NAME: Final = "coordinator.kernpool.internal"
"""What agents ask for by TLS, whatever address they dial."""
_ID: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_URI: Final = re.compile(r"spiffe://([a-z0-9-]{1,63})/(node|coordinator)/([a-z0-9-]{1,63})")


class Role(StrEnum):
    """What the holder of a certificate is."""

    NODE = "node"
    """An agent: may link and serve its own data plane."""
    COORDINATOR = "coordinator"
    """A coordinator: agents take orders from it."""


@final
@dataclass(frozen=True, slots=True)
class Subject:
    """Who a certificate is for."""

    cluster_id: str
    role: Role
    id: str

    def __post_init__(self) -> None:
        for part in (self.cluster_id, self.id):
            if not _ID.fullmatch(part):
                raise ValueError(f"{part!r} cannot stand in a certificate: lowercase letters, digits and - only")

    @property
    def uri(self) -> str:
        """`spiffe://CLUSTER/ROLE/ID`."""
        return f"spiffe://{self.cluster_id}/{self.role}/{self.id}"

    @property
    def dns_name(self) -> str:
        """What a client passes as server_hostname."""
        return node_dns_name(self.id) if self.role is Role.NODE else COORDINATOR_DNS_NAME


def node_dns_name(node_id: str) -> str:
    """The TLS name of a node's own listener: `<node-id>.node.kernpool.internal`."""
    return f"{node_id}.node.kernpool.internal"


def parse_uri(uri: str) -> Subject | None:
    """The subject of a SPIFFE URI of ours; None for any other text."""
    match = _URI.fullmatch(uri)
    if match is None:
        return None
    try:
        return Subject(match[1], Role(match[2]), match[3])
    except ValueError:
        return None
