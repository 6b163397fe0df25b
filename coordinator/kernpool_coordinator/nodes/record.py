"""What the coordinator knows of one node: identity, inventory, last words."""

import json
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Final, final

from sqlalchemy import Connection, select

from kernpool_coordinator.store import Put, schema
from kernpool_mesh.messages import AttemptStatus, Gpu, Heartbeat, Inventory, Resources, SandboxStatus

DATA_KEY_BYTES: Final = 32


@final
@dataclass(slots=True)
class DataKey:
    """Signs the node's data-plane tokens; lives in memory only and is new with every link."""

    id: int
    key: bytes = field(repr=False)
    made_mono: float


@final
@dataclass(slots=True, eq=False)
class Node:
    """One node that has joined."""

    id: str
    workspace: str
    owner: str
    """Who made the join token."""
    name: str
    """Its host name, as it says."""
    pool: str
    generation: int
    """Grows with each re-enrolment."""
    joined_unix_s: float
    incarnation: int = 0
    """Highest one seen: the agent's starts on this node."""
    removed: bool = False
    """Refused for ever; the record stays, so that its certificate is known to be worth nothing."""
    agent_version: str = ""
    inventory: Inventory | None = None
    """As it was told last, also before our own start."""
    heartbeat: Heartbeat | None = None
    inventory_is_fresh: bool = False
    """Told on the present link."""
    data_key: DataKey | None = None
    attempts: list[AttemptStatus] = field(default_factory=list)
    """Snapshot frames that have come on this link, until the last one."""
    sandboxes: list[SandboxStatus] = field(default_factory=list)
    """As above."""
    certificate_expires_unix_s: float = 0.0

    @property
    def address(self) -> str:
        """Where other nodes reach it best."""
        return self.inventory.addresses[0] if self.inventory and self.inventory.addresses else "127.0.0.1"

    def put(self) -> Put:
        """Write it; should the store be away, the row is made anew when it is back."""
        return Put(schema.nodes, self._row(), self._row)

    def _row(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "workspace": self.workspace,
            "owner": self.owner,
            "name": self.name,
            "pool": self.pool,
            "generation": self.generation,
            "incarnation": self.incarnation,
            "removed": self.removed,
            "agent_version": self.agent_version,
            "inventory": json.dumps(_inventory_row(self.inventory)) if self.inventory else "",
            "joined_unix_s": self.joined_unix_s,
        }


@final
@dataclass(slots=True)
class KnownCertificate:
    """A certificate that we signed."""

    serial: str
    node_id: str
    generation: int
    expires_unix_s: float
    workspace: str
    owner: str
    revoked: bool = False

    def put(self) -> Put:
        """Write it."""
        row = {name: getattr(self, name) for name in self.__slots__}
        return Put(schema.certificates, row)


def read_nodes(connection: Connection) -> list[Node]:
    """Read all, removed ones too."""
    return [
        Node(
            id=row.id,
            workspace=row.workspace,
            owner=row.owner,
            name=row.name,
            pool=row.pool,
            generation=row.generation,
            joined_unix_s=row.joined_unix_s,
            incarnation=row.incarnation,
            removed=row.removed,
            agent_version=row.agent_version,
            inventory=_inventory(json.loads(row.inventory)) if row.inventory else None,
        )
        for row in connection.execute(select(schema.nodes))
    ]


def read_certificates(connection: Connection) -> list[KnownCertificate]:
    """Read all that we remember."""
    return [KnownCertificate(**row) for row in connection.execute(select(schema.certificates)).mappings()]


def _inventory_row(inventory: Inventory) -> dict[str, Any]:
    row = {name: getattr(inventory, name) for name in _names(Inventory)}
    row["total"] = resources_row(inventory.total)
    row["gpus"] = [gpu_row(gpu) for gpu in inventory.gpus]
    return row


def _inventory(row: dict[str, Any]) -> Inventory:
    total = Resources(**row.pop("total"))
    gpus = [Gpu(**gpu) for gpu in row.pop("gpus")]
    return Inventory(total=total, gpus=gpus, **row)


@cache
def _names(cls: type[Inventory | Resources | Gpu]) -> tuple[str, ...]:
    return tuple(one.name for one in fields(cls))


def resources_row(resources: Resources) -> dict[str, int]:
    """Give plain data."""
    return {name: getattr(resources, name) for name in _names(Resources)}


def gpu_row(gpu: Gpu) -> dict[str, Any]:
    """Give plain data."""
    return {name: getattr(gpu, name) for name in _names(Gpu)}
