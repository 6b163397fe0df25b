"""`kernpool join-token rm`."""

import argparse

from kernpool.cli.common import connect
from kernpool.cli.removal import remove_each
from kernpool.cli.terminal import Terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("ids", nargs="+", metavar="ID", help="as `kernpool join-token ls` shows it")


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Make join tokens worthless; machines that joined already stay."""
    with connect(terminal) as client:
        return remove_each(arguments.ids, client.remove_join_token, terminal)
