"""`kernpool node ls`."""

import argparse

from kernpool.cli import listing, shown
from kernpool.cli.common import add_listing, connect
from kernpool.cli.terminal import Terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_listing(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """List nodes."""
    with connect(terminal) as client:
        listing.write(
            terminal,
            arguments,
            client.nodes(),
            columns=shown.NODE_COLUMNS,
            row=shown.node_row,
            name=lambda node: node.id,
            empty="No nodes. Add one: kernpool join-token create",
        )
    return 0
