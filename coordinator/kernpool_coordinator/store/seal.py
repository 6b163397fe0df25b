"""Seals secrets at rest: AES-256-GCM under the coordinator's key file, bound to what they belong to.

The key never enters the database, so a stolen database or backup tells no secret (DECISIONS 16).
"""

import json
import os
from pathlib import Path
from typing import Final, Self, final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from kernpool_coordinator.errors import StoreError

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_VERSION: Final = b"\x01"
"""First byte of everything sealed, so that another way of sealing can come later."""


@final
class Seal:
    """Seals and opens maps of secrets; shows neither key nor content."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise StoreError(f"the key that seals secrets must have {KEY_BYTES} bytes, this one has {len(key)}")
        self._aead = AESGCM(key)
        self._mac_key = _derived(key, b"kernpool fingerprint v1")

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Read the key file, or make it (0600) when it is missing."""
        try:
            return cls(path.read_bytes())
        except FileNotFoundError:
            return cls(_make_key_file(path))
        except OSError as error:
            raise StoreError(f"the key file {path} cannot be read: {error.strerror}") from error

    def seal(self, secrets: dict[str, str], bound_to: str) -> bytes:
        """Encrypt a map; only `open` with the same `bound_to` (e.g. `job/j-17`) gives it back."""
        nonce = os.urandom(_NONCE_BYTES)
        return _VERSION + nonce + self._aead.encrypt(nonce, json.dumps(secrets).encode(), bound_to.encode())

    def open(self, sealed: bytes, bound_to: str) -> dict[str, str]:
        """Decrypt a map. Raises StoreError when the key is another one or the bytes were changed."""
        nonce, body = sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
        try:
            if sealed[:1] != _VERSION:
                raise InvalidTag
            plain = self._aead.decrypt(nonce, body, bound_to.encode())
        except (InvalidTag, ValueError):
            message = f"the secrets of {bound_to} cannot be opened: the key file is not the one that sealed them"
            raise StoreError(message, hint="restore the key file that belongs to this store") from None
        return dict(json.loads(plain))

    def fingerprint(self, data: bytes) -> str:
        """Name data (that may hold secrets) so that equal data can be recognised and nothing guessed from the name."""
        mac = hmac.HMAC(self._mac_key, hashes.SHA256())
        mac.update(data)
        return mac.finalize().hex()

    def __repr__(self) -> str:
        return "<Seal>"


def _derived(key: bytes, purpose: bytes) -> bytes:
    mac = hmac.HMAC(key, hashes.SHA256())
    mac.update(purpose)
    return mac.finalize()


def _make_key_file(path: Path) -> bytes:
    key = os.urandom(KEY_BYTES)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key)
        file.flush()
        os.fsync(file.fileno())
    return key
