"""The options of a bulk create, as keyword arguments and as the body that travels; both SDKs and the CLI share them."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, final

from kernpool.results import Limits, Template
from kernpool.units import duration_s, size_mib

Argv = Sequence[str] | str
"""A program with its arguments, or one text for `sh -c`."""


@final
class CommandOptions(TypedDict, total=False):
    """How a command in a sandbox runs."""

    env: Mapping[str, str]
    """Added to the sandbox's own."""
    cwd: str
    user: str
    timeout_s: float
    """All its processes are killed then; 0: no deadline of its own."""
    stdin: bytes
    output_bytes_max: int
    """Bytes kept of each of stdout and stderr (1 MiB; 8 MiB at most)."""


@final
class CreateOptions(TypedDict, total=False):
    """How sandboxes are made."""

    image: str
    """`host`, or the path of a root filesystem directory or tar on the node."""
    command: Argv
    """Runs once in each; its result comes with the item."""
    ttl: str | float
    """Time to live: `10m` (the default), or seconds."""
    idle: str | float
    """End it when nothing used it for so long; 0: never."""
    cpus: float
    memory: str | int
    """`512m`, `2g`, or MiB."""
    disk: str | int
    pids: int
    env: Mapping[str, str]
    labels: Mapping[str, str]
    user: str
    """Of the template: who commands run as unless they say otherwise."""
    cwd: str
    allow_setuid: bool
    node: str
    """Only there."""
    remove_after: bool
    """Remove each when its command has ended."""
    timeout_s: float
    """Of the command."""
    stdin: bytes
    """Of the command."""
    output_bytes_max: int
    """Of the command."""


def argv_of(command: Argv) -> list[str]:
    """Give the program and its arguments."""
    return ["sh", "-c", command] if isinstance(command, str) else [str(item) for item in command]


def command_document(command: Argv, options: CommandOptions) -> dict[str, Any]:
    """Give the body of a command."""
    document: dict[str, Any] = {"argv": argv_of(command)}
    if stdin := options.get("stdin"):
        document["stdin_b64"] = base64.b64encode(stdin).decode()
    for key in ("env", "cwd", "user", "timeout_s", "output_bytes_max"):
        if value := options.get(key):
            document[key] = dict(value) if isinstance(value, Mapping) else value
    return document


def template_of(options: CreateOptions) -> Template:
    """Give the template that the options name."""
    limits = Limits(
        cpus=options.get("cpus"),
        memory_mib=size_mib(options["memory"]) if options.get("memory") else None,
        disk_mib=size_mib(options["disk"]) if options.get("disk") else None,
        pids=options.get("pids"),
    )
    return Template(
        image=options.get("image", "host"),
        limits=limits,
        user=options.get("user", "root"),
        cwd=options.get("cwd", "/"),
        allow_setuid=options.get("allow_setuid", False),
    )


def create_document(count: int, options: CreateOptions, idempotency_key: str) -> dict[str, Any]:
    """Give the body of a bulk create. Raises ValueError for a duration or size that is none."""
    document: dict[str, Any] = {
        "count": count,
        "template": template_of(options).document(),
        "ttl_s": duration_s(options.get("ttl", 600.0)),
        "idle_s": duration_s(options.get("idle", 0.0)),
        "env": dict(options.get("env", {})),
        "labels": dict(options.get("labels", {})),
        "remove_after": options.get("remove_after", False),
        "idempotency_key": idempotency_key,
    }
    if node := options.get("node"):
        document["node"] = node
    if command := options.get("command"):
        own: CommandOptions = {
            "timeout_s": options.get("timeout_s", 0.0),
            "stdin": options.get("stdin", b""),
            "output_bytes_max": options.get("output_bytes_max", 0),
        }
        document["command"] = command_document(command, own)
    return document
