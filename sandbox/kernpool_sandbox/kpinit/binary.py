"""Finds the kp-init program of this installation, and builds it from its C source where it is missing or stale."""

from pathlib import Path


def find() -> Path:
    """Return the path of kp-init, building it first in a source tree; raises BuildError."""
    raise NotImplementedError


def build(target: Path) -> None:
    """Compile the C source next to this package to `target` with the system's `cc`; raises BuildError."""
    raise NotImplementedError
