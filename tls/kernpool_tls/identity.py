"""A node's identity as its agent holds it: one private file, and when it is due. Needs no cryptography package.

    none --enrol--> fresh --half life--> due --its end--> expired --7 days--> dead
                      ^------renewed------+------renewed-----+        enrol again with a token

The file is PEM with one line of JSON before it (PEM readers skip that), so key, certificate and authority are replaced
together or not at all.
"""

import json
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, final

from kernpool_tls.errors import IdentityFileError
from kernpool_tls.files import read_private, write_private
from kernpool_tls.times import BACKDATE_S, EXPIRED_RENEWAL_S_MAX, renew_at_unix_s

_HEAD: Final = "kernpool-identity: "


class IdentityPhase(StrEnum):
    """What an agent has to do about its certificate now."""

    FRESH = "fresh"
    """Nothing."""
    DUE = "due"
    """Renew over the link; it is still valid."""
    EXPIRED = "expired"
    """Renew by POST with the old key, within 7 days of its end."""
    DEAD = "dead"
    """Too old to renew: enrol again with a join token bound to the node."""


@final
@dataclass(frozen=True, slots=True)
class Identity:
    """Who this node is. The key stays in the file; only TLS and the key worker read it."""

    node_id: str
    cluster_id: str
    serial: str
    not_before_unix_s: float
    not_after_unix_s: float
    certificate_pem: str = field(repr=False)
    ca_pem: str = field(repr=False)

    def phase(self, now_unix_s: float, jitter: float = 0.5) -> IdentityPhase:
        """What is to be done at this time; `jitter` in [0, 1) spreads the renewals of many nodes."""
        if now_unix_s >= self.not_after_unix_s + EXPIRED_RENEWAL_S_MAX:
            return IdentityPhase.DEAD
        if now_unix_s >= self.not_after_unix_s:
            return IdentityPhase.EXPIRED
        return IdentityPhase.DUE if self.needs_renewal(now_unix_s, jitter) else IdentityPhase.FRESH

    def needs_renewal(self, now_unix_s: float, jitter: float = 0.5) -> bool:
        """About half of its life is over."""
        return now_unix_s >= self.renew_at_unix_s(jitter)

    def renew_at_unix_s(self, jitter: float = 0.5) -> float:
        """When to renew."""
        return renew_at_unix_s(self.not_before_unix_s, self.not_after_unix_s, jitter)

    def life_left(self, now_unix_s: float) -> float:
        """Part of its life that is left, 1 to 0; health fails below a quarter."""
        life_s = self.not_after_unix_s - self.not_before_unix_s - BACKDATE_S
        return min(1.0, max(0.0, (self.not_after_unix_s - now_unix_s) / life_s))


def save(path: Path, identity: Identity, key_pem: str) -> None:
    """Replace the identity file as a whole (mode 0600). Raises OSError."""
    head = {
        "node_id": identity.node_id,
        "cluster_id": identity.cluster_id,
        "serial": identity.serial,
        "not_before_unix_s": identity.not_before_unix_s,
        "not_after_unix_s": identity.not_after_unix_s,
    }
    text = f"{_HEAD}{json.dumps(head)}\n{key_pem}{identity.certificate_pem}{identity.ca_pem}"
    write_private(path, text.encode())


def load(path: Path) -> Identity | None:
    """The identity in the file; None before enrolment.

    Raises IdentityFileError for a damaged file, InsecureFileError when others may read it, OSError.
    """
    try:
        text = read_private(path).decode("ascii", errors="replace")
    except FileNotFoundError:
        return None
    head, _newline, pem = text.partition("\n")
    blocks = _pem_blocks(pem)
    try:
        return _build(json.loads(head.removeprefix(_HEAD)), blocks)
    except (ValueError, KeyError, TypeError):
        raise IdentityFileError(
            f"{path} is damaged; remove it and enrol again with a token bound to this node"
        ) from None


def load_key_pem(path: Path) -> str:
    """The private key of an identity file, for the key worker alone. Raises IdentityFileError, OSError."""
    blocks = _pem_blocks(read_private(path).decode("ascii", errors="replace"))
    keys = [block for block in blocks if "PRIVATE KEY" in block]
    if len(keys) != 1:
        raise IdentityFileError(f"{path} holds no private key; enrol again with a token bound to this node")
    return keys[0]


def _build(head: dict[str, Any], blocks: list[str]) -> Identity:
    certificates = [block for block in blocks if "BEGIN CERTIFICATE" in block]
    if len(certificates) != 2:
        raise ValueError("an identity file holds two certificates")
    return Identity(
        node_id=str(head["node_id"]),
        cluster_id=str(head["cluster_id"]),
        serial=str(head["serial"]),
        not_before_unix_s=float(head["not_before_unix_s"]),
        not_after_unix_s=float(head["not_after_unix_s"]),
        certificate_pem=certificates[0],
        ca_pem=certificates[1],
    )


def _pem_blocks(text: str) -> list[str]:
    blocks, lines = [], []
    for line in text.splitlines():
        if line.startswith("-----BEGIN "):
            lines = [line]
        elif lines:
            lines.append(line)
            if line.startswith("-----END "):
                blocks.append("\n".join(lines) + "\n")
                lines = []
    return blocks
