"""`kernpool sandbox show`."""

import argparse

from kernpool.cli import shown
from kernpool.cli.common import add_json, connect
from kernpool.cli.sandbox_ids import find_id
from kernpool.cli.terminal import Terminal
from kernpool.results import SandboxInfo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("id", metavar="ID", help="id, or a beginning of it that fits no other")
    add_json(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Show a sandbox."""
    with connect(terminal) as client:
        info = client.sandboxes.handle(find_id(client, arguments.id)).refresh()
    if arguments.json:
        terminal.document(info.raw)
    else:
        terminal.details(details(info))
    return 0


def details(info: SandboxInfo) -> dict[str, str]:
    """Write everything about a sandbox in words."""
    template = info.template
    ended = f": {info.reason}{f' ({info.detail})' if info.detail else ''}" if info.state == "ended" else ""
    return {
        "id": info.id,
        "state": f"{info.state}{ended}",
        "node": info.node or "-",
        "image": template.image,
        "limits": shown.limits_text(info),
        "user": template.user,
        "cwd": template.cwd,
        "network": template.network,
        "isolation": "namespace: processes, files, users and network of its own; it shares the kernel of its node",
        "started": f"{'from the parked pool' if info.parked else 'cold'}, {shown.age(info.created_unix_s)} ago",
        "time left": "-" if info.state == "ended" else shown.left(info),
        "labels": shown.pairs(info.labels),
    }
