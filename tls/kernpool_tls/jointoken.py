"""Join tokens: what lets a new node enrol. Format, hashing and checks; the records are the coordinator's to store.

`kpj1.<pin hex>.<id>.<secret>`: the pin lets the node know its coordinator before it trusts anything, the id finds the
record, the secret (256 bit) proves. Only the secret's SHA-256 is stored.
"""

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, final

from kernpool_tls.errors import (
    JoinTokenExpiredError,
    JoinTokenForeignError,
    JoinTokenMalformedError,
    JoinTokenNodeError,
    JoinTokenUsedError,
)
from kernpool_tls.pin import PIN_PREFIX

SECRET_BYTES: Final = 32
LIFETIME_S_DEFAULT: Final = 15 * 60
_TOKEN: Final = re.compile(r"kpj1\.([0-9a-f]{64})\.([a-z2-7]{16})\.([A-Za-z0-9_-]{43})", re.ASCII)


@final
@dataclass(frozen=True, slots=True)
class JoinToken:
    """A join token as a person hands it on; `str(token)` is the text, its repr shows no secret."""

    pin: str
    """`sha256:HEX` of the authority's public key."""
    token_id: str
    secret: str = field(repr=False)

    def __str__(self) -> str:
        return f"kpj1.{self.pin.removeprefix(PIN_PREFIX)}.{self.token_id}.{self.secret}"

    @property
    def secret_sha256(self) -> str:
        """What the coordinator stores of it."""
        return hashlib.sha256(self.secret.encode()).hexdigest()


@final
@dataclass(frozen=True, slots=True)
class JoinTokenRecord:
    """What the coordinator keeps of a join token."""

    token_id: str
    secret_sha256: str
    expires_unix_s: float
    uses_left: int
    pool: str = "default"
    """The pool its nodes belong to."""
    node_id: str = ""
    """Not empty: it only re-enrols this node, under its old id."""


def mint(pin: str, random_bytes: Callable[[int], bytes] = secrets.token_bytes) -> JoinToken:
    """A new token for the authority with this pin."""
    token_id = base64.b32encode(random_bytes(10)).decode().lower()
    secret = base64.urlsafe_b64encode(random_bytes(SECRET_BYTES)).rstrip(b"=").decode()
    return JoinToken(pin, token_id, secret)


def parse(text: str) -> JoinToken:
    """The token of a text (surrounding blanks are ignored). Raises JoinTokenMalformedError."""
    match = _TOKEN.fullmatch(text.strip())
    if match is None:
        raise JoinTokenMalformedError("not a join token: one starts with `kpj1.` and is copied as a whole")
    return JoinToken(PIN_PREFIX + match[1], match[2], match[3])


def check(token: JoinToken, record: JoinTokenRecord | None, *, pin: str, now_unix_s: float, node_id: str = "") -> None:
    """Whether this coordinator (with `pin`) lets the bearer enrol; `record` is what it stored under token.token_id.

    `node_id` is the old id that the node says it had, if any: keeping one needs a token bound to it. Raises a
    JoinTokenError that says which rule refused it; for an unknown token and a wrong secret it is the same one. The
    caller takes one use away in the same transaction and enrols the node as `record.node_id` or under a new id.
    """
    if not hmac.compare_digest(token.pin, pin):
        raise JoinTokenForeignError("the join token is for another coordinator: it pins another authority")
    known = record.secret_sha256 if record is not None else ""
    if not hmac.compare_digest(token.secret_sha256, known) or record is None or record.token_id != token.token_id:
        raise JoinTokenForeignError("this coordinator never issued the join token, or has removed it; make a new one")
    if now_unix_s >= record.expires_unix_s:
        raise JoinTokenExpiredError(
            f"the join token {token.token_id} expired {now_unix_s - record.expires_unix_s:.0f} s ago; make a new one"
        )
    if record.uses_left <= 0:
        raise JoinTokenUsedError(f"the join token {token.token_id} is used up; make a new one")
    if node_id and record.node_id != node_id:
        bound = f"is bound to node {record.node_id}" if record.node_id else "makes new nodes"
        raise JoinTokenNodeError(
            f"the join token {token.token_id} {bound}; keeping the id {node_id} needs a token that is bound to it"
        )
