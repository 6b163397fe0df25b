"""The keys of data-plane tokens for this node: the newest that the coordinator told, and the one before for a while."""

import time
from collections.abc import Callable, Mapping
from typing import final

PREVIOUS_VALID_S = 600.0
"""How long the key before stays good: longer than any token under it lives (5 minutes)."""


@final
class DataKeys:
    """Keys by id. They are never written to disk: each greeting brings the current one."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._newest: tuple[int, bytes] | None = None
        self._previous: tuple[int, bytes] | None = None
        self._previous_ends_at = 0.0

    def learn(self, key_id: int, key: bytes) -> None:
        """Take a key from the coordinator; the same one again changes nothing, an empty one is none."""
        if not key or self._newest == (key_id, key):
            return
        self._previous, self._newest = self._newest, (key_id, key)
        self._previous_ends_at = self._monotonic() + PREVIOUS_VALID_S

    def current(self) -> Mapping[int, bytes]:
        """Return the keys that are good now."""
        keys = {}
        if self._previous is not None and self._monotonic() < self._previous_ends_at:
            keys[self._previous[0]] = self._previous[1]
        if self._newest is not None:
            keys[self._newest[0]] = self._newest[1]
        return keys

    def __repr__(self) -> str:
        return f"<DataKeys {sorted(self.current())}>"  # ids only: the keys are secrets
