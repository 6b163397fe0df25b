"""`kernpool sandbox rm`."""

import argparse

from kernpool.cli.commands import FAILED
from kernpool.cli.common import add_yes, connect, pairs
from kernpool.cli.errors import UsageError
from kernpool.cli.sandbox_ids import find_id
from kernpool.cli.terminal import Terminal
from kernpool.sdk.client import Client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("ids", nargs="*", metavar="ID", help="id, or a beginning of it that fits no other")
    parser.add_argument("-l", "--label", action="append", default=[], metavar="KEY=VALUE", help="all with these labels")
    parser.add_argument("-a", "--all", action="store_true", help="all of the workspace")
    add_yes(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Remove sandboxes; named ones without asking, as they were named."""
    labels = pairs(arguments.label, "--label")
    if bool(arguments.ids) + bool(labels) + arguments.all != 1:
        raise UsageError("give ids, or --label, or --all")
    with connect(terminal) as client:
        ids = [find_id(client, text) for text in arguments.ids]
        many = "" if ids else _question(client, labels)
        if many and not terminal.confirm(many, yes=arguments.yes or bool(labels)):
            return 1
        if not ids and not many:
            terminal.note("There are none.")
            return 0
        removed = client.sandboxes.remove(ids, labels, all=arguments.all)
        if ids:
            for sandbox_id in removed.ids:
                terminal.line(f"{sandbox_id}: removed")
        else:
            terminal.line(f"{len(removed.ids)} removed")
        for sandbox_id in removed.unreachable:
            terminal.problem(f"{sandbox_id}: its node is away; it ends there by its time to live at the latest")
        return FAILED if removed.unreachable else 0


def _question(client: Client, labels: dict[str, str]) -> str:
    """Count what would be removed; empty: nothing."""
    count = sum(info.state != "ended" for info in client.sandboxes.ls(labels))
    return f"Remove {count} sandbox{'' if count == 1 else 'es'} with all that is in them?" if count else ""
