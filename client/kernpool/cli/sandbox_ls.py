"""`kernpool sandbox ls`."""

import argparse

from kernpool.cli import listing, shown
from kernpool.cli.common import add_listing, connect, pairs
from kernpool.cli.terminal import Terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("-l", "--label", action="append", default=[], metavar="KEY=VALUE", help="those with this label")
    parser.add_argument("--state", choices=("starting", "running", "ended"), help="those in this state")
    add_listing(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """List sandboxes."""
    with connect(terminal) as client:
        listing.write(
            terminal,
            arguments,
            client.sandboxes.ls(pairs(arguments.label, "--label"), arguments.state),
            columns=shown.SANDBOX_COLUMNS,
            row=shown.sandbox_row,
            name=lambda sandbox: sandbox.id,
            empty="No sandboxes. Make one: kernpool sandbox create",
        )
    return 0
