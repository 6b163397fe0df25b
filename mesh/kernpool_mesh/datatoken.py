"""Short-lived tokens of the data plane: the coordinator signs, the node's agent verifies, nobody stores them.

`kpd1.<base64url(msgpack [node_id, object, verbs, exp_unix_s, actor, key_id])>.<base64url(hmac-sha256)>`. The MAC
covers the prefix and the claims and is checked before the claims are parsed. Time is the coordinator's (DECISIONS 18):
the agent passes its estimate of it.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

import msgpack

from kernpool_mesh.errors import (
    DataTokenExpiredError,
    DataTokenMalformedError,
    DataTokenNodeError,
    DataTokenSignatureError,
)

LIFETIME_S_MAX: Final = 300
CLOCK_SLACK_S: Final = 10
"""How far the agent's estimate of the coordinator's time may lag behind before a fresh token looks too long-lived."""
KEY_BYTES: Final = 32
TOKEN_CHARS_MAX: Final = 2048
_PREFIX: Final = "kpd1."


@final
@dataclass(frozen=True, slots=True)
class Claims:
    """What a data token lets its bearer do."""

    node_id: str
    object: str
    """`sandbox/<id>` or `job/<id>`."""
    verbs: tuple[str, ...]
    """Of exec, read, write, connect, logs, metrics."""
    exp_unix_s: int
    """Coordinator time after which it is worth nothing."""
    actor: str
    """Who acts, as the coordinator authenticated it."""

    def allows(self, verb: str, object_: str) -> bool:
        """Whether this token covers `verb` on `object_`."""
        return verb in self.verbs and self.object == object_


def sign(key: bytes, key_id: int, claims: Claims, now_unix_s: float) -> str:
    """The token text of these claims.

    Raises ValueError when the key is not KEY_BYTES long, the claims outlive LIFETIME_S_MAX or the token grows too long.
    """
    if len(key) != KEY_BYTES:
        raise ValueError(f"a data key has {KEY_BYTES} bytes, not {len(key)}")
    if claims.exp_unix_s > now_unix_s + LIFETIME_S_MAX + 1:
        raise ValueError(f"a data token lasts at most {LIFETIME_S_MAX} s")
    fields = [claims.node_id, claims.object, list(claims.verbs), claims.exp_unix_s, claims.actor, key_id]
    signed = _PREFIX + _b64(msgpack.packb(fields))
    token = f"{signed}.{_b64(_mac(key, signed))}"
    if len(token) > TOKEN_CHARS_MAX:
        raise ValueError(f"a data token of {len(token)} characters exceeds {TOKEN_CHARS_MAX}")
    return token


def verify(token: str, keys: Mapping[int, bytes], node_id: str, now_unix_s: float) -> Claims:
    """The claims of a genuine, living token for this node.

    `keys` are the node's current keys by id (at most a few). Raises a DataTokenError; none of them shows the token.
    """
    signed, mac = _split(token)
    signers = [key_id for key_id, key in keys.items() if hmac.compare_digest(_mac(key, signed), mac)]
    if not signers:
        raise DataTokenSignatureError("no key of this node signed the data token; ask the coordinator for a new one")
    claims, key_id = _parse(signed)
    if key_id not in signers:
        raise DataTokenSignatureError("the data token names another key than the one that signed it")
    if claims.node_id != node_id:
        raise DataTokenNodeError(f"the data token is for node {claims.node_id}, this is {node_id}")
    left_s = claims.exp_unix_s - now_unix_s
    if left_s <= 0:
        raise DataTokenExpiredError(f"the data token expired {-left_s:.0f} s ago; ask the coordinator for a new one")
    if left_s > LIFETIME_S_MAX + CLOCK_SLACK_S:
        raise DataTokenExpiredError(
            f"the data token claims {left_s:.0f} s more, at most {LIFETIME_S_MAX} s are honoured"
        )
    return claims


def _split(token: str) -> tuple[str, bytes]:
    if len(token) > TOKEN_CHARS_MAX or not token.startswith(_PREFIX) or not token.isascii():
        raise DataTokenMalformedError("not a data token")
    signed, dot, mac = token.rpartition(".")
    if not dot or len(signed) <= len(_PREFIX):
        raise DataTokenMalformedError("not a data token")
    return signed, _unb64(mac)


def _parse(signed: str) -> tuple[Claims, int]:
    try:
        fields = msgpack.unpackb(_unb64(signed[len(_PREFIX) :]), max_ext_len=0)
        node_id, object_, verbs, exp_unix_s, actor, key_id = fields[:6]
    except (ValueError, TypeError, msgpack.UnpackException):
        raise DataTokenMalformedError("the data token's claims have another shape than this version knows") from None
    texts: Sequence[object] = (node_id, object_, actor, *verbs) if isinstance(verbs, list) else (None,)
    if not all(isinstance(text, str) for text in texts) or type(exp_unix_s) is not int or type(key_id) is not int:
        raise DataTokenMalformedError("the data token's claims have another shape than this version knows")
    return Claims(node_id, object_, tuple(verbs), exp_unix_s, actor), key_id


def _mac(key: bytes, signed: str) -> bytes:
    return hmac.digest(key, signed.encode(), hashlib.sha256)


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _unb64(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise DataTokenMalformedError("not a data token") from None
