"""API tokens: texts that prove who calls. Only their SHA-256 is kept; 256 random bits need no slow hash."""

import base64
import hashlib
import secrets
from dataclasses import dataclass
from typing import Any, Final, final

from sqlalchemy import Connection, select

from kernpool.bodies import ApiTokenRequest
from kernpool_coordinator.core.clock import Clock
from kernpool_coordinator.errors import InvalidError, NotFoundError, UnauthenticatedError
from kernpool_coordinator.events.commits import Commits
from kernpool_coordinator.events.log import EventLog
from kernpool_coordinator.store import Delete, Put, Store, schema
from kernpool_coordinator.tokens.actor import SYSTEM, Actor, Role

PREFIX: Final = "kpt_"
SECRET_BYTES: Final = 32
LOCAL_ID: Final = "local"
"""Id of the embedded install's own token."""


@final
@dataclass(frozen=True, slots=True)
class ApiToken:
    """One token, without its text."""

    id: str
    name: str
    role: Role
    workspace: str
    owner: str
    sha256: str
    created_unix_s: float

    def row(self) -> dict[str, Any]:
        """Give it as the store keeps it."""
        return {name: getattr(self, name) for name in self.__slots__} | {"role": str(self.role)}

    def body(self, text: str | None = None) -> dict[str, Any]:
        """Give it as an ApiTokenBody."""
        return {
            "id": self.id,
            "name": self.name,
            "role": str(self.role),
            "workspace": self.workspace,
            "token": text,
            "created_unix_s": self.created_unix_s,
        }


@final
class ApiTokens:
    """All API tokens, in memory and in the store."""

    def __init__(self, commits: Commits, events: EventLog, clock: Clock) -> None:
        self._commits = commits
        self._events = events
        self._clock = clock
        self._by_hash: dict[str, tuple[ApiToken, Actor]] = {}

    async def load(self, store: Store) -> None:
        """Read them all."""
        for token in await store.read(_read):
            self._remember(token)

    def authenticate(self, text: str) -> Actor:
        """Find who calls. The hash is looked up, so nothing about a wrong token leaks by time."""
        found = self._by_hash.get(_sha256(text)) if text.startswith(PREFIX) else None
        if found is None:
            raise UnauthenticatedError(
                "this token is not known here", hint="use the token file of this coordinator, or ask for a new token"
            )
        return found[1]

    async def create(self, actor: Actor, body: ApiTokenRequest) -> dict[str, Any]:
        """Make a token; its text is in the answer and nowhere else."""
        text = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
        token = self._new(_token_id(), body.name, Role(body.role), body.workspace, actor.name, text)
        await self._keep(token, actor)
        return token.body(text)

    async def ensure_local(self, text: str) -> None:
        """Make the text in the token file valid; an earlier one is so no more."""
        if not text.startswith(PREFIX) or len(text) < len(PREFIX) + 32:
            raise InvalidError(f"the local token must start with {PREFIX} and hold at least 32 random characters")
        known = self._find(LOCAL_ID)
        if known is not None and known.sha256 == _sha256(text):
            return
        await self._keep(self._new(LOCAL_ID, "local", Role.ADMIN, "default", SYSTEM.name, text), SYSTEM)

    async def revoke(self, actor: Actor, token_id: str) -> None:
        """Forget a token, at once and for good."""
        token = self._find(token_id)
        if token is None:
            raise NotFoundError(f"There is no token {token_id}.", hint="kernpool token ls")
        event = self._events.make(actor.name, "revoked", f"token/{token_id}", token.workspace)
        await self._commits.now([Delete(schema.tokens, {"id": token_id})], [event])
        self._by_hash.pop(token.sha256, None)

    def all(self) -> list[dict[str, Any]]:
        """List them without their texts."""
        return [token.body() for token, _ in sorted(self._by_hash.values(), key=lambda pair: pair[0].created_unix_s)]

    def _new(self, token_id: str, name: str, role: Role, workspace: str, owner: str, text: str) -> ApiToken:
        return ApiToken(token_id, name, role, workspace, owner, _sha256(text), self._clock.now().unix)

    async def _keep(self, token: ApiToken, actor: Actor) -> None:
        data = {"name": token.name, "role": str(token.role)}
        event = self._events.make(actor.name, "created", f"token/{token.id}", token.workspace, data=data)
        await self._commits.now([Put(schema.tokens, token.row())], [event])
        older = self._find(token.id)
        if older is not None:
            del self._by_hash[older.sha256]
        self._remember(token)

    def _remember(self, token: ApiToken) -> None:
        self._by_hash[token.sha256] = (token, Actor(token.name, token.role, token.workspace, token.id))

    def _find(self, token_id: str) -> ApiToken | None:
        return next((token for token, _ in self._by_hash.values() if token.id == token_id), None)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _token_id() -> str:
    return "t-" + base64.b32encode(secrets.token_bytes(10)).decode().lower()[:12]


def _read(connection: Connection) -> list[ApiToken]:
    rows = connection.execute(select(schema.tokens)).mappings()
    return [ApiToken(**{**row, "role": Role(row["role"])}) for row in rows]
