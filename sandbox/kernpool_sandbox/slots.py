"""The name of one kp-init sandbox: never used twice, and it tells which uid range and cgroup were given to it.

So the parts of a sandbox can be given back even when the journal is gone. Users never see it: a sandbox's own id is
bound to a slot when it is handed out.
"""

import secrets
from dataclasses import dataclass
from typing import final

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"


@final
@dataclass(frozen=True, slots=True)
class SlotParts:
    """What a slot's name tells."""

    uid_index: int
    """-1: no range (the single id of a rootless node)."""
    cgroup: str
    """Empty: none."""


@final
class SlotNames:
    """Makes names; the random prefix tells this runtime's from those of every earlier one."""

    __slots__ = ("_count", "_prefix")

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix or "".join(secrets.choice(_ALPHABET) for _ in range(7))
        self._count = 0

    def new(self, uid_index: int, cgroup: str) -> str:
        """Return a name such as `k3x09ab.1f-12-c7`: prefix, count, uid range, cgroup."""
        self._count += 1
        return f"{self._prefix}.{self._count:x}-{uid_index if uid_index >= 0 else 'n'}-{cgroup or 'n'}"


def parse(slot: str) -> SlotParts:
    """Return what a name tells; a name that none of ours made tells nothing."""
    parts = slot.split("-")
    if len(parts) != 3 or not (parts[1].isdigit() or parts[1] == "n"):
        return SlotParts(-1, "")
    return SlotParts(int(parts[1]) if parts[1] != "n" else -1, parts[2] if parts[2] != "n" else "")
