"""The one answer to "does this fit there?", used by whoever plans (coordinator) and by whoever commits (agent)."""

from kernpool_mesh.messages import Resources

_AMOUNTS = (
    ("cpu", "cpu_millis", "m"),
    ("memory", "memory_mib", " MiB"),
    ("disk", "disk_mib", " MiB"),
    ("gpus", "gpus", ""),
)


def shortage(free: Resources, need: Resources) -> str:
    """Return the first thing that is short, as a sentence part ("memory: 64 MiB wanted, 10 MiB free"), or ""."""
    for name, attribute, unit in _AMOUNTS:
        wanted, there = getattr(need, attribute), getattr(free, attribute)
        if wanted > there:
            return f"{name}: {wanted}{unit} wanted, {there}{unit} free"
    return ""


def fits(free: Resources, need: Resources) -> bool:
    """Whether `need` can be taken from `free`."""
    return not shortage(free, need)
