"""What a task may ask for that is understood but not built yet: said by name, never silently ignored."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kernpool.spec.resources import ResourceFields
    from kernpool.spec.task import Task

Key = tuple[str | int, ...]

TASK_FEATURES: Final[dict[str, str]] = {
    "workdir": "syncing a working directory",
    "file_mounts": "file mounts",
    "volumes": "volumes",
    "managed_secrets": "managed secrets",
    "service": "serving endpoints",
    "pool": "worker pools",
    "config": "per-task config",
    "event_callback": "event callbacks",
    "inputs": "estimated inputs",
    "outputs": "estimated outputs",
}

RESOURCE_FEATURES: Final[dict[str, tuple[str, Callable[[Any], bool]]]] = {
    "infra": ("choosing an infrastructure", lambda value: value not in ("*", "none")),
    "cloud": ("choosing a cloud", bool),
    "region": ("choosing a region", bool),
    "zone": ("choosing a zone", bool),
    "accelerator_args": ("accelerator arguments", bool),
    "instance_type": ("instance types", bool),
    "use_spot": ("spot instances", bool),
    "max_hourly_cost": ("a bound on cost", bool),
    "local_disk": ("local disks", bool),
    "disk_tier": ("disk tiers", lambda value: value != "none"),
    "network_tier": ("network tiers", lambda value: value != "standard"),
    "ports": ("opening ports", bool),
    "image_id": ("running in an image", bool),
    "autostop": ("autostop", bool),
    "priority_class": ("priority classes", bool),
    "job_recovery": ("recovery strategies", lambda value: value.get("strategy", "none") != "none"),
    "volumes": ("cloud disks", bool),
}


def unbuilt_features(task: "Task") -> dict[Key, str]:
    """Find them in a task: key path -> sentence."""
    found: dict[Key, str] = {
        (name,): _sentence(what) for name, what in TASK_FEATURES.items() if getattr(task, name) is not None
    }
    if task.api_server_access:
        found["api_server_access",] = _sentence("handing the API's credentials to tasks")
    for name in task.secrets:
        if name.startswith("secrets:"):
            found["secrets",] = _sentence("secrets by reference")
    found.update(_in_resources(task.resources, ("resources",)))
    for list_name in ("any_of", "ordered"):
        for index, item in enumerate(getattr(task.resources, list_name) or []):
            here: Key = ("resources", list_name, index)
            if isinstance(item, str):
                found[here] = _sentence(f"choosing a pool by name ({item})")
            else:
                found.update(_in_resources(item, here))
    return found


def _in_resources(fields: "ResourceFields", path: Key) -> dict[Key, str]:
    found: dict[Key, str] = {}
    for name, (what, asks) in RESOURCE_FEATURES.items():
        value = getattr(fields, name)
        if value is not None and asks(value):
            found[*path, name] = _sentence(what)
    wanted = fields.accelerators
    if wanted is not None and wanted.by_memory:
        found[*path, "accelerators"] = _sentence(f"choosing a GPU by its memory ({wanted.by_memory})")
    if wanted is not None and any(choice.count != int(choice.count) for choice in wanted.choices):
        found[*path, "accelerators"] = _sentence("a fraction of a GPU")
    return found


def _sentence(what: str) -> str:
    return f"not built yet: {what}; remove the key to run without it"
