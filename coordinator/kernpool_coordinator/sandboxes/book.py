"""The book of sandboxes: which exist, where, and how they stand. Synchronous; what nodes tell is the truth.

    (none) --create--> STARTING --its node made it--> RUNNING --it ended--> ENDED
                           |                             ^                    |
                           `-- never made --> ENDED      `-- alive, and only -'
                                                             thought lost with its node

`doomed` goes beside the state: its end was asked for and its node has not confirmed it. It is kept until the node says
so, however long it is away, and wins over a create that is still in flight.
"""

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, final

from sqlalchemy import Connection, or_, select

from kernpool_coordinator.sandboxes.templates import template_body
from kernpool_coordinator.store import Put, schema
from kernpool_mesh.messages import Limits, SandboxState, SandboxStatus, Template
from kernpool_mesh.reasons import EndReason

ENDED_KEPT: Final = 5_000
"""Ended ones that stay in memory, for quick answers; the store has the others."""
KITS_MAX: Final = 1_000
NEVER_MADE: Final = "it was never made"


@final
@dataclass(slots=True, eq=False)
class Kit:
    """What all sandboxes of one create have in common; kept once for all of them."""

    template: Template
    labels: dict[str, str]
    workspace: str
    owner: str
    template_body: dict[str, Any] = field(init=False)
    template_json: str = field(init=False)
    labels_json: str = field(init=False)

    def __post_init__(self) -> None:
        self.template_body = template_body(self.template)
        self.template_json = json.dumps(self.template_body)
        self.labels_json = json.dumps(self.labels)


@final
@dataclass(slots=True, eq=False)
class Sandbox:
    """One sandbox."""

    id: str
    node_id: str
    kit: Kit
    created_unix_s: float
    state: SandboxState = SandboxState.STARTING
    reason: EndReason | None = None
    detail: str = ""
    parked: bool = False
    """It came from the node's parked pool."""
    expires_unix_s: float = 0.0
    ended_unix_s: float | None = None
    doomed: EndReason | None = None
    """Not None: its end was asked for and its node has not confirmed it."""
    unwanted: bool = False
    """Its end was asked for, confirmed or not: should a word come that it was made, it is removed again."""

    @property
    def alive(self) -> bool:
        """Whether it exists, or may, on its node."""
        return self.state is not SandboxState.ENDED

    def body(self) -> dict[str, Any]:
        """Give a SandboxBody."""
        kit = self.kit
        return {
            "id": self.id,
            "node": self.node_id,
            "state": self.state.value,
            "reason": self.reason.value if self.reason is not None else None,
            "detail": self.detail,
            "template": kit.template_body,
            "parked": self.parked,
            "labels": kit.labels,
            "workspace": kit.workspace,
            "owner": kit.owner,
            "created_unix_s": self.created_unix_s,
            "expires_unix_s": self.expires_unix_s,
        }

    def put(self) -> Put:
        """Write it; should the store be away, the row is made anew when it is back."""
        return Put(schema.sandboxes, self._row(), self._row)

    def _row(self) -> dict[str, Any]:
        kit = self.kit
        return {
            "id": self.id,
            "workspace": kit.workspace,
            "owner": kit.owner,
            "node_id": self.node_id,
            "state": self.state.value,
            "reason": self.reason.value if self.reason is not None else "",
            "detail": self.detail,
            "template": kit.template_json,
            "labels": kit.labels_json,
            "parked": self.parked,
            "doomed": self.doomed is not None,
            "created_unix_s": self.created_unix_s,
            "expires_unix_s": self.expires_unix_s,
            "ended_unix_s": self.ended_unix_s,
        }


@final
class SandboxBook:
    """All sandboxes that are alive or doomed, and the last ones that ended."""

    def __init__(self) -> None:
        self.sandboxes: dict[str, Sandbox] = {}
        """By id."""
        self.on_node: dict[str, dict[str, Sandbox]] = {}
        """Those that are alive or doomed, by node and id."""
        self.unsaved: dict[str, Sandbox] = {}
        """Those whose row is behind; rows follow in the background (DECISIONS 20)."""
        self.alive = 0
        self._ended: deque[str] = deque()
        """Ids of those that ended and wait to be dropped from memory, oldest first."""
        self._kits: dict[tuple[str, str, str, str], Kit] = {}
        """Kits of adopted ones, so that a thousand equal ones share theirs."""

    # --- steps ---

    def add(self, sandbox: Sandbox) -> None:
        """Take a new one, or one from the store. An id that stands for one that ended may be used again (a retry)."""
        assert not (known := self.sandboxes.get(sandbox.id)) or not known.alive, f"{sandbox.id} is alive"
        self.sandboxes[sandbox.id] = sandbox
        self.on_node.setdefault(sandbox.node_id, {})[sandbox.id] = sandbox
        self.alive += sandbox.alive

    def tell(self, sandbox: Sandbox, status: SandboxStatus, unix_s: float) -> None:
        """Take what its node says. An ended one stays ended, unless it was only thought lost with its node."""
        if status.state is SandboxState.ENDED:
            self.end(sandbox, status.reason or EndReason.LOST, status.detail, unix_s)
            return
        if not sandbox.alive:
            if sandbox.reason is not EndReason.NODE_LOST:
                return
            self._revive(sandbox)
        if status.state is SandboxState.RUNNING:
            sandbox.state = SandboxState.RUNNING  # never back to STARTING: such a word is late
        sandbox.parked = status.parked
        sandbox.expires_unix_s = status.expires_unix_s
        self.unsaved[sandbox.id] = sandbox

    def end(self, sandbox: Sandbox, reason: EndReason, detail: str, unix_s: float, *, confirmed: bool = True) -> None:
        """It is over; `confirmed`: its node says so, so nothing of it is left there."""
        if sandbox.alive:
            sandbox.state, sandbox.reason, sandbox.detail = SandboxState.ENDED, reason, detail
            sandbox.ended_unix_s = unix_s
            self.alive -= 1
            self._ended.append(sandbox.id)
        if confirmed:
            sandbox.doomed = None
        if sandbox.doomed is None:
            self.on_node.get(sandbox.node_id, {}).pop(sandbox.id, None)
        self.unsaved[sandbox.id] = sandbox

    def doom(self, sandbox: Sandbox, reason: EndReason) -> None:
        """Its end is asked for; one that has ended needs none."""
        if sandbox.alive and sandbox.doomed is None:
            sandbox.doomed, sandbox.unwanted = reason, True
            self.unsaved[sandbox.id] = sandbox

    def adopt(self, node_id: str, status: SandboxStatus, unix_s: float) -> Sandbox:
        """A node has one that we have no record of: it is taken as it is."""
        key = (repr(status.template), repr(sorted(status.labels.items())), status.workspace, status.owner)
        kit = self._kits.get(key)
        if kit is None:
            if len(self._kits) >= KITS_MAX:
                self._kits.clear()
            kit = self._kits[key] = Kit(status.template, status.labels, status.workspace, status.owner)
        sandbox = Sandbox(status.sandbox_id, node_id, kit, status.started_unix_s or unix_s)
        self.add(sandbox)
        self.tell(sandbox, status, unix_s)
        return sandbox

    def synced(self, node_id: str, statuses: Iterable[SandboxStatus], unix_s: float) -> list[str]:
        """A node that linked anew told all it holds; gives the ids that are to be removed there."""
        told = {status.sandbox_id: status for status in statuses}
        for sandbox_id, sandbox in list(self.on_node.get(node_id, {}).items()):
            if sandbox_id not in told:
                self._missing(sandbox, unix_s)
        for sandbox_id, status in told.items():
            known = self.sandboxes.get(sandbox_id)
            if known is not None and known.node_id == node_id:
                self.tell(known, status, unix_s)
            elif known is None:
                self.adopt(node_id, status, unix_s)
        return [one for one, status in told.items() if self._must_go(node_id, one, status)]

    def _missing(self, sandbox: Sandbox, unix_s: float) -> None:
        if sandbox.doomed is not None:
            self.end(sandbox, sandbox.doomed, "", unix_s)
        elif sandbox.state is SandboxState.STARTING:
            self.end(sandbox, EndReason.LOST, NEVER_MADE, unix_s)
        else:
            self.end(sandbox, EndReason.LOST, "its node no longer knows it", unix_s)

    def _must_go(self, node_id: str, sandbox_id: str, status: SandboxStatus) -> bool:
        """Whether it is alive there although its end was asked for, or it has a place elsewhere."""
        sandbox = self.sandboxes.get(sandbox_id)
        if sandbox is None or status.state is SandboxState.ENDED:
            return False
        return sandbox.doomed is not None or not sandbox.alive or sandbox.node_id != node_id

    def _revive(self, sandbox: Sandbox) -> None:
        sandbox.reason, sandbox.detail, sandbox.ended_unix_s = None, "", None
        sandbox.state = SandboxState.RUNNING
        self.on_node.setdefault(sandbox.node_id, {})[sandbox.id] = sandbox
        self.alive += 1

    # --- the store ---

    def take_unsaved(self) -> list[Sandbox]:
        """Hand out those whose rows are to be written, and drop old ended ones from memory."""
        unsaved, self.unsaved = list(self.unsaved.values()), {}
        while len(self._ended) > ENDED_KEPT:
            sandbox = self.sandboxes.get(self._ended.popleft())
            if sandbox is not None and not sandbox.alive and sandbox.doomed is None:
                del self.sandboxes[sandbox.id]
        return unsaved

    def __repr__(self) -> str:
        return f"<SandboxBook {self.alive} alive of {len(self.sandboxes)}, {len(self.unsaved)} unsaved>"


def read_sandboxes(connection: Connection) -> list[Sandbox]:
    """Read those that are alive, or doomed on a node that has not confirmed it."""
    table = schema.sandboxes
    query = select(table).where(or_(table.c.state != SandboxState.ENDED.value, table.c.doomed))
    return [sandbox_from(row) for row in connection.execute(query)]


def sandbox_from(row: Any) -> Sandbox:
    """Make one from its row."""
    body = json.loads(row.template)
    limits = body.pop("limits")
    template = Template(
        limits=Limits(
            round((limits["cpus"] or 0) * 1000), limits["memory_mib"] or 0, limits["disk_mib"] or 0, limits["pids"] or 0
        ),
        **body,
    )
    return Sandbox(
        id=row.id,
        node_id=row.node_id,
        kit=Kit(template, json.loads(row.labels), row.workspace, row.owner),
        created_unix_s=row.created_unix_s,
        state=SandboxState(row.state),
        reason=EndReason(row.reason) if row.reason else None,
        detail=row.detail,
        parked=row.parked,
        expires_unix_s=row.expires_unix_s,
        ended_unix_s=row.ended_unix_s,
        doomed=EndReason.CANCELLED if row.doomed else None,
        unwanted=row.doomed,
    )
