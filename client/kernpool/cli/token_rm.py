"""`kernpool token rm`."""

import argparse

from kernpool.cli.common import add_yes, connect
from kernpool.cli.removal import remove_each
from kernpool.cli.terminal import Terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("ids", nargs="+", metavar="ID", help="as `kernpool token ls` shows it")
    add_yes(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Make tokens worthless."""
    question = f"Whoever uses {', '.join(arguments.ids)} is shut out at once. Go on?"
    if not terminal.confirm(question, yes=arguments.yes):
        return 1
    with connect(terminal) as client:
        return remove_each(arguments.ids, client.remove_token, terminal)
