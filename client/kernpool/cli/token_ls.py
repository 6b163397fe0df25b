"""`kernpool token ls`."""

import argparse

from kernpool.cli import listing, shown
from kernpool.cli.common import add_listing, connect
from kernpool.cli.terminal import Terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_listing(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """List tokens of the API."""
    with connect(terminal) as client:
        listing.write(
            terminal,
            arguments,
            client.tokens(),
            columns=shown.TOKEN_COLUMNS,
            row=shown.token_row,
            name=lambda token: token.id,
            empty="No tokens.",
        )
    return 0
