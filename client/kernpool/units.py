"""Durations and sizes as people write them (`10m`, `2g`), and as they read them."""

import re
from typing import Final

SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
MIB: Final = {"k": 2.0**-10, "m": 1.0, "g": 2.0**10, "t": 2.0**20}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)?", re.IGNORECASE)
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


def duration_s(value: str | float) -> float:
    """Read `90`, `90s`, `10m`, `1h30m`, `500ms` as seconds. Raises ValueError."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    text, seconds, end = str(value).strip(), 0.0, 0
    for match in _DURATION.finditer(text):
        if match.start() != end:
            break
        seconds += float(match[1]) * SECONDS[(match[2] or "s").lower()]
        end = match.end()
    if not text or end != len(text):
        raise ValueError(f"expected a duration like 90s, 10m or 1h30m, found {value!r}")
    return seconds


def size_mib(value: str | int) -> int:
    """Read `512m`, `2g`, `1.5GiB` as MiB; a plain number is MiB. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = str(value).strip()
    match = _SIZE.fullmatch(text)
    amount = float(match[1]) * MIB[match[2].lower() or "m"] if match else 0.0
    if amount < 1:
        raise ValueError(f"expected a size like 512m or 2g, found {value!r}")
    return round(amount)


def show_duration(seconds: float) -> str:
    """Write a duration in at most two units: `0.42s`, `12s`, `3m 5s`, `4d 3h`."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f}s"
    whole = round(seconds)
    for size, name, low_size, low_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // low_size
            return f"{whole // size}{name} {rest}{low_name}" if rest else f"{whole // size}{name}"
    return f"{whole}s"


def show_mib(mib: float) -> str:
    """Write a size: `512 MiB`, `23.4 GiB`, `1.8 TiB`."""
    if mib >= 2**20:
        return f"{mib / 2**20:.1f} TiB"
    return f"{mib / 2**10:.1f} GiB" if mib >= 2**10 else f"{mib:.0f} MiB"


def show_number(value: float) -> str:
    """Write an amount without needless digits: `2`, `1.5`."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
