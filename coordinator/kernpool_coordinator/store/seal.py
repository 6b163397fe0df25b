"""Seals the secrets of jobs at rest, bound to the job, under the coordinator's key file.

The key never enters the database, so a stolen database or backup tells no secret (DECISIONS 16).
"""

import json
from pathlib import Path
from typing import Self, final

from kernpool_coordinator.errors import StoreError
from kernpool_tls.errors import IdentityError
from kernpool_tls.sealing import Sealer


@final
class Seal:
    """Seals and opens maps of secrets; shows neither key nor content."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Read the key file, or make it (0600) when it is missing. Raises StoreError."""
        try:
            return cls(Sealer.from_file(path))
        except (IdentityError, OSError) as error:
            raise StoreError(f"the key file {path} cannot be used: {error}") from error

    def seal(self, secrets: dict[str, str], bound_to: str) -> bytes:
        """Encrypt a map; only `open` with the same `bound_to` (e.g. `job/j-17`) gives it back."""
        return self._sealer.seal(bound_to, json.dumps(secrets).encode())

    def open(self, sealed: bytes, bound_to: str) -> dict[str, str]:
        """Decrypt a map. Raises StoreError when the key is another one or the bytes were changed."""
        try:
            return dict(json.loads(self._sealer.open(bound_to, sealed)))
        except IdentityError as error:
            message = f"the secrets of {bound_to} cannot be opened: {error}"
            raise StoreError(message, hint="restore the key file that belongs to this store") from None

    def __repr__(self) -> str:
        return "<Seal>"
