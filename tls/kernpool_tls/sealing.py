"""Secrets at rest: AES-256-GCM under a key file that stands beside the store and never in it."""

import base64
import binascii
import secrets
from pathlib import Path
from typing import Final, final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from kernpool_tls.errors import SealError
from kernpool_tls.files import create_private, read_private

_KEY_PREFIX: Final = b"kpk1."
_SEAL_PREFIX: Final = b"kps1"
_NONCE_BYTES: Final = 12


@final
class Sealer:
    """Seals and opens bytes; the name of a secret is bound to it, so sealed secrets cannot be swapped."""

    __slots__ = ("_aead",)

    def __init__(self, key: bytes) -> None:
        """`key` has 32 bytes."""
        if len(key) != 32:
            raise ValueError(f"a sealing key has 32 bytes, not {len(key)}")
        self._aead = AESGCM(key)

    @classmethod
    def from_file(cls, path: Path) -> "Sealer":
        """The sealer of a key file, made (0600) at the first use.

        Raises InsecureFileError when others may read it, SealError when it is damaged, OSError.
        """
        if not path.exists():
            create_private(path, _KEY_PREFIX + base64.b64encode(secrets.token_bytes(32)) + b"\n")
        text = read_private(path).strip()
        try:
            if not text.startswith(_KEY_PREFIX):
                raise ValueError
            return cls(base64.b64decode(text[len(_KEY_PREFIX) :], validate=True))
        except (ValueError, binascii.Error):
            raise SealError(f"{path} is no key file of ours; restore it from a backup") from None

    def __repr__(self) -> str:
        return "<Sealer>"

    def seal(self, name: str, secret: bytes) -> bytes:
        """Sealed bytes that only this key opens, under this name. A random 96-bit nonce serves 2**32 seals."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return _SEAL_PREFIX + nonce + self._aead.encrypt(nonce, secret, name.encode())

    def open(self, name: str, sealed: bytes) -> bytes:
        """The secret. Raises SealError for another key, another name or damaged bytes."""
        if not sealed.startswith(_SEAL_PREFIX):
            raise SealError(f"{name} is not sealed in a format of ours")
        start = len(_SEAL_PREFIX)
        nonce, ciphertext = sealed[start : start + _NONCE_BYTES], sealed[start + _NONCE_BYTES :]
        try:
            return self._aead.decrypt(nonce, ciphertext, name.encode())
        except (InvalidTag, ValueError):
            raise SealError(
                f"{name} was sealed with another key (or is damaged): is this the right key file?"
            ) from None
