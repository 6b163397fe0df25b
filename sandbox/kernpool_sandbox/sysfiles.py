"""Reads and writes the kernel's small files (/proc, /sys, cgroups): each takes microseconds, so no thread is needed."""

import os
from pathlib import Path


def read_text(path: Path) -> str | None:
    """Return the text of a file; None when it is not there, not ours to read, or gone while it is read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts = []
        while part := os.read(fd, 65536):
            parts.append(part)
        return b"".join(parts).decode()
    except OSError:
        return None  # the cgroup was removed between open and read
    finally:
        os.close(fd)


def write_text(path: Path, text: str) -> None:
    """Write a text to an existing file in one call; OSError when the kernel refuses."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def try_write(path: Path, text: str) -> bool:
    """Write a text; False when the kernel refuses."""
    try:
        write_text(path, text)
    except OSError:
        return False
    return True


def read_number(path: Path) -> int:
    """Return the number in a file, or -1."""
    text = (read_text(path) or "").strip()
    return int(text) if text.isdigit() else -1


def read_keyed(path: Path) -> dict[str, int]:
    """Return the `key number` lines of a file; empty when it cannot be read."""
    pairs = (line.split() for line in (read_text(path) or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
