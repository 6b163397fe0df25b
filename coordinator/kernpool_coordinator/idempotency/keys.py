"""The keys that callers gave, what they were used for and what came of it; kept for a day."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, final

from pydantic import BaseModel
from sqlalchemy import Connection, delete, select

from kernpool_coordinator.errors import BusyError, ConflictError
from kernpool_coordinator.store import Operation, Put, Run, Store, schema
from kernpool_coordinator.tokens.actor import Actor

KEPT_S: Final = 86_400.0
KEYS_MAX: Final = 200_000

KeyName = tuple[str, str, str, str]
"""(workspace, owner, kind, key)"""


@final
@dataclass(slots=True)
class UsedKey:
    """One key and its outcome."""

    name: KeyName
    fingerprint: str
    outcome: dict[str, Any]
    """What the kind needs to answer again, e.g. {"job": "j-3"}."""
    created_unix_s: float

    def put(self) -> Put:
        """Write it."""
        return Put(schema.idempotency, self._row(), self._row)

    def _row(self) -> dict[str, Any]:
        workspace, owner, kind, key = self.name
        return {
            "workspace": workspace,
            "owner": owner,
            "kind": kind,
            "key": key,
            "fingerprint": self.fingerprint,
            "outcome": json.dumps(self.outcome),
            "created_unix_s": self.created_unix_s,
        }


@final
class Keys:
    """All keys of the last day."""

    def __init__(self) -> None:
        self._used: dict[KeyName, UsedKey] = {}

    async def load(self, store: Store) -> None:
        """Read them all."""
        self._used = {used.name: used for used in await store.read(_read)}

    def find(self, actor: Actor, kind: str, key: str, fingerprint: str) -> UsedKey | None:
        """Find an earlier use. Raises ConflictError when it was for another request."""
        used = self._used.get((actor.workspace, actor.name, kind, key))
        if used is not None and used.fingerprint != fingerprint:
            raise ConflictError(
                f"the idempotency key {key!r} was used for a different request", hint="use a new key for each request"
            )
        return used

    def use(
        self, actor: Actor, kind: str, key: str, fingerprint: str, outcome: dict[str, Any], unix_s: float
    ) -> UsedKey:
        """Note a use; the caller writes its `put()` together with what it made."""
        if len(self._used) >= KEYS_MAX:
            raise BusyError(f"{len(self._used)} idempotency keys are remembered already", hint="try again without one")
        used = UsedKey((actor.workspace, actor.name, kind, key), fingerprint, outcome, unix_s)
        self._used[used.name] = used
        return used

    def forget(self, used: UsedKey) -> None:
        """Nothing came of it."""
        self._used.pop(used.name, None)

    def prune(self, unix_s: float) -> list[Operation]:
        """Forget those older than a day; gives the operations."""
        horizon = unix_s - KEPT_S
        self._used = {name: used for name, used in self._used.items() if used.created_unix_s >= horizon}
        return [Run(delete(schema.idempotency).where(schema.idempotency.c.created_unix_s < horizon))]


def fingerprint(body: BaseModel, hide: Callable[[dict[str, Any]], None]) -> str:
    """Name a request's content. `hide` removes the values that may be secret: a hash of few bits can be guessed."""
    data = body.model_dump(mode="json", exclude={"idempotency_key"})
    hide(data)
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _read(connection: Connection) -> list[UsedKey]:
    table = schema.idempotency
    return [
        UsedKey(
            (row.workspace, row.owner, row.kind, row.key), row.fingerprint, json.loads(row.outcome), row.created_unix_s
        )
        for row in connection.execute(select(table))
    ]
