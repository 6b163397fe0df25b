"""Amounts as people write them: `4`, `4+`, `64GB`, `512MB+`, `30m`, and accelerators in all their forms."""

import re
from dataclasses import dataclass
from typing import Any, final

GIB_PER_UNIT = {"KB": 2.0**-20, "MB": 2.0**-10, "GB": 1.0, "TB": 2.0**10, "PB": 2.0**20}
_MEMORY = re.compile(r"^(\d+(?:\.\d+)?)\s*([KMGTP]i?B?)?(\+)?$", re.IGNORECASE)
_DURATION = re.compile(r"^(\d+)(m|h|d|w)?$")
_MINUTES = {"m": 1, "h": 60, "d": 1440, "w": 10080, None: 1}
_ACCELERATOR = re.compile(r"^[A-Za-z][A-Za-z0-9_.-]*$")
_BY_MEMORY = re.compile(r"^(?:[a-z]+:)?\d+(?:\.\d+)?[GT]B\+?(?::\d+)?$", re.IGNORECASE)


@final
@dataclass(frozen=True, slots=True)
class Amount:
    """So much, or so much at least."""

    value: float
    at_least: bool = False


@final
@dataclass(frozen=True, slots=True)
class Accelerator:
    """One kind of accelerator and how many of it on each node."""

    name: str
    count: float


@final
@dataclass(frozen=True, slots=True)
class Accelerators:
    """The kinds that will do, one of them per node; `ordered`: the first that is there is taken."""

    choices: tuple[Accelerator, ...]
    ordered: bool = False
    by_memory: str = ""
    """Not empty: the raw text of a choice by GPU memory (`80GB+`)."""


def cpus(value: Any) -> Amount:
    """Read `4`, `0.5` or `"4+"` CPUs."""
    number = _plain_number(value)
    if number is None and isinstance(value, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(\+)?", value.strip())
        if match and float(match[1]) > 0:
            return Amount(float(match[1]), match[2] is not None)
    if number is None or number <= 0:
        raise ValueError(f"expected a number of CPUs above 0 like 4 or 4+, found {value!r}")
    return Amount(number)


def memory_gib(value: Any) -> Amount:
    """Read `64`, `"64+"`, `64GB`, `512MB+`: GiB of memory."""
    number = _plain_number(value)
    if number is not None and number > 0:
        return Amount(number)
    match = _MEMORY.match(value.strip()) if isinstance(value, str) else None
    if match is None or float(match[1]) <= 0:
        raise ValueError(f"expected GB of memory above 0 like 16, 16+ or 512MB+, found {value!r}")
    unit = (match[2] or "GB").upper().replace("I", "").removesuffix("B") + "B"
    return Amount(float(match[1]) * GIB_PER_UNIT[unit], match[3] is not None)


def disk_gib(value: Any) -> int:
    """Read `256`, `256GB` or `1TB`: whole GiB of disk."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    match = re.fullmatch(r"(\d+)\s*(GB|TB|GiB|TiB)?", value.strip(), re.IGNORECASE) if isinstance(value, str) else None
    if match is None or int(match[1]) <= 0:
        raise ValueError(f"expected whole GB of disk like 256, 256GB or 1TB, found {value!r}")
    return int(match[1]) * (1024 if (match[2] or "").upper().startswith("T") else 1)


def duration_minutes(value: Any) -> int:
    """Read `30`, `30m`, `2h`, `1d` or `1w`: minutes."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _DURATION.match(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"expected minutes, or a time like 30m, 2h, 1d or 1w, found {value!r}")
    return int(match[1]) * _MINUTES[match[2]]


def ports(value: Any) -> tuple[tuple[int, int], ...]:
    """Read `8080`, `"8080,9090"`, `"10052-10100"` or a list of these: ranges of ports, both ends included."""
    items = value if isinstance(value, list) else [value]
    ranges: list[tuple[int, int]] = []
    for item in items:
        for part in str(item).split(",") if isinstance(item, str | int) and not isinstance(item, bool) else [""]:
            match = re.fullmatch(r"\s*(\d{1,5})\s*(?:-\s*(\d{1,5})\s*)?", part)
            low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
            if not 1 <= low <= high <= 65535:
                raise ValueError(f"expected ports from 1 to 65535 like 8080 or 10052-10100, found {item!r}")
            ranges.append((low, high))
    return tuple(ranges)


def accelerators(value: Any) -> Accelerators:
    """Read `H100`, `H100:8`, `[A, B]` (ordered), `{A, B}` and `{A: 8, B: 8}` (whichever is there)."""
    match value:
        case str() if _BY_MEMORY.match(value.strip()):
            return Accelerators((), by_memory=value)
        case str():
            return Accelerators((_accelerator(value, None),))
        case list() if value:
            return Accelerators(tuple(_accelerator(item, None) for item in value), ordered=True)
        case dict() if value:
            return Accelerators(tuple(_accelerator(name, count) for name, count in value.items()))
        case _:
            raise ValueError(f"expected an accelerator like H100:8, a list or a map of them, found {value!r}")


def _accelerator(name: Any, count: Any) -> Accelerator:
    if not isinstance(name, str):
        raise ValueError(f"expected an accelerator's name like H100 or H100:8, found {name!r}")
    base, separator, inline = name.strip().partition(":")
    if separator and count is not None:
        raise ValueError(f"{name!r} has its count twice")
    number = _plain_number(_number_or_text(inline) if separator else 1 if count is None else count)
    if not _ACCELERATOR.match(base) or number is None or number <= 0:
        shown = name if count is None else f"{name}: {count}"
        raise ValueError(f"expected an accelerator like H100 or H100:8 with a count above 0, found {shown!r}")
    return Accelerator(base, number)


def _number_or_text(text: str) -> float | str:
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else text


def _plain_number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and value == value and abs(value) < 1e12 else None
