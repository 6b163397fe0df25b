"""Join tokens: counted, expiring, bound to a pool, perhaps to a node. What may enrol, and how often."""

import asyncio
from dataclasses import dataclass, replace
from typing import Any, Final, final

from sqlalchemy import Connection, select

from kernpool.bodies import JoinTokenRequest
from kernpool_coordinator.core.clock import Clock
from kernpool_coordinator.errors import BusyError, ForbiddenError, NotFoundError
from kernpool_coordinator.events.commits import Commits
from kernpool_coordinator.events.log import EventLog
from kernpool_coordinator.store import Delete, Operation, Put, Store, schema
from kernpool_coordinator.tokens.actor import Actor
from kernpool_tls import jointoken
from kernpool_tls.errors import JoinTokenError
from kernpool_tls.jointoken import JoinToken, JoinTokenRecord

TOKENS_MAX: Final = 10_000


@final
@dataclass(frozen=True, slots=True)
class StoredJoinToken:
    """One token, without its secret."""

    id: str
    workspace: str
    owner: str
    sha256: str
    pool: str
    uses_left: int
    node_id: str
    """Not empty: it re-enrols this very node and makes no other."""
    created_unix_s: float
    expires_unix_s: float

    def row(self) -> dict[str, Any]:
        """Give it as the store keeps it."""
        return {name: getattr(self, name) for name in self.__slots__}

    def body(self, text: str | None = None) -> dict[str, Any]:
        """Give it as a JoinTokenBody."""
        return {
            "id": self.id,
            "token": text,
            "pool": self.pool,
            "uses_left": self.uses_left,
            "expires_unix_s": self.expires_unix_s,
        }

    def record(self) -> JoinTokenRecord:
        """Give it as the checker wants it."""
        return JoinTokenRecord(self.id, self.sha256, self.expires_unix_s, self.uses_left, self.pool, self.node_id)


@final
class JoinTokens:
    """All join tokens that may still be used."""

    def __init__(self, commits: Commits, events: EventLog, clock: Clock, ca_pin: str) -> None:
        self._commits = commits
        self._events = events
        self._clock = clock
        self._pin = ca_pin
        self._tokens: dict[str, StoredJoinToken] = {}
        self._using = asyncio.Lock()
        """One use at a time: two nodes must not both take the last one."""

    async def load(self, store: Store) -> None:
        """Read them all."""
        self._tokens = {token.id: token for token in await store.read(_read)}

    async def create(self, actor: Actor, body: JoinTokenRequest) -> dict[str, Any]:
        """Make a token; its text is in the answer and nowhere else. The caller has checked the node id."""
        if len(self._tokens) >= TOKENS_MAX:
            raise BusyError(f"there are {len(self._tokens)} join tokens already", hint="revoke some")
        minted = jointoken.mint(self._pin)
        now = self._clock.now().unix
        token = StoredJoinToken(
            minted.token_id, actor.workspace, actor.name, minted.secret_sha256, body.pool, body.uses,
            body.node_id or "", now, now + body.expires_s,
        )  # fmt: skip
        data = {"pool": token.pool, "uses": token.uses_left}
        event = self._events.make(actor.name, "created", f"join-token/{token.id}", token.workspace, data=data)
        await self._commits.now([Put(schema.join_tokens, token.row())], [event])
        self._tokens[token.id] = token
        return token.body(str(minted))

    async def revoke(self, actor: Actor, token_id: str) -> None:
        """Forget a token at once."""
        token = self._tokens.get(token_id)
        if token is None:
            raise NotFoundError(f"There is no join token {token_id}.", hint="kernpool join-token ls")
        event = self._events.make(actor.name, "revoked", f"join-token/{token_id}", token.workspace)
        await self._commits.now([Delete(schema.join_tokens, {"id": token_id})], [event])
        self._tokens.pop(token_id, None)

    def all(self) -> list[dict[str, Any]]:
        """List those that may still be used, without their texts."""
        now = self._clock.now().unix
        usable = [token for token in self._tokens.values() if token.uses_left and token.expires_unix_s > now]
        return [token.body() for token in sorted(usable, key=lambda token: token.created_unix_s)]

    def use(self) -> asyncio.Lock:
        """Guard a use: `async with tokens.use(): token = tokens.check(...); commit [tokens.spend(token), ...]`."""
        return self._using

    def check(self, token_id: str, secret: str) -> StoredJoinToken:
        """Find the token that this secret may use. Raises ForbiddenError saying why not."""
        token = self._tokens.get(token_id)
        shown = JoinToken(self._pin, token_id, secret)
        try:
            jointoken.check(
                shown, token.record() if token else None, pin=self._pin, now_unix_s=self._clock.now().unix,
                node_id=token.node_id if token else "",
            )  # fmt: skip
        except JoinTokenError as error:
            raise ForbiddenError(str(error), hint="kernpool node token") from None
        assert token is not None, "an unknown token was refused above"
        return token

    def spend(self, token: StoredJoinToken) -> Operation:
        """Give the operation that takes one use away; `spent` follows once it is on disk."""
        if token.uses_left <= 1:
            return Delete(schema.join_tokens, {"id": token.id})
        return Put(schema.join_tokens, replace(token, uses_left=token.uses_left - 1).row())

    def spent(self, token: StoredJoinToken) -> None:
        """One use is gone, on disk; a used up token is kept in memory, so that its bearer is told so."""
        if token.id in self._tokens:
            self._tokens[token.id] = replace(token, uses_left=token.uses_left - 1)

    def prune(self) -> list[Operation]:
        """Forget those that expired a day ago; gives the operations."""
        horizon = self._clock.now().unix - 86400
        old = [token for token in self._tokens.values() if token.expires_unix_s < horizon]
        for token in old:
            del self._tokens[token.id]
        return [Delete(schema.join_tokens, {"id": token.id}) for token in old]


def _read(connection: Connection) -> list[StoredJoinToken]:
    return [StoredJoinToken(**row) for row in connection.execute(select(schema.join_tokens)).mappings()]
