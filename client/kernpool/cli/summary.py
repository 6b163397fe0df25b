"""One sentence about a bulk create: how many, how they ended, how fast."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from kernpool.results import Created


def summary(items: Sequence[Created[Any]], wall_s: float) -> str:
    """Write it."""
    made = [item for item in items if item.error is None]
    parts = [f"{count} {how}" for how, count in Counter(map(_how, items)).most_common(4)]
    times = sorted(item.result.first_output_ms for item in made if item.result and item.result.first_output_ms)
    if times:
        parts.append(f"first output p50 {_at(times, 0.5)}, p99 {_at(times, 0.99)}")
    parked = sum(bool(item.info and item.info.parked) for item in made)
    if made:
        parts.append("all parked" if parked == len(made) else "all cold" if not parked else f"{parked} parked")
    return f"{len(items)} sandbox{'' if len(items) == 1 else 'es'} in {wall_s:.2f} s: {'; '.join(parts)}"


def _how(item: Created[Any]) -> str:
    if item.error is not None:
        return f"could not be made ({item.error.code})"
    if item.result is None:
        return "made"
    return (
        f"exited with {item.result.exit_code}" if item.result.reason == "exited" else f"ended by {item.result.reason}"
    )


def _at(sorted_ms: Sequence[float], share: float) -> str:
    value = sorted_ms[min(len(sorted_ms) - 1, int(share * len(sorted_ms)))]
    return f"{value:.1f} ms" if value < 10 else f"{value:.0f} ms"
