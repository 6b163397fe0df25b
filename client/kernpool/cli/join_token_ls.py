"""`kernpool join-token ls`."""

import argparse

from kernpool.cli import listing, shown
from kernpool.cli.common import add_listing, connect
from kernpool.cli.terminal import Terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_listing(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """List join tokens."""
    with connect(terminal) as client:
        listing.write(
            terminal,
            arguments,
            client.join_tokens(),
            columns=shown.JOIN_TOKEN_COLUMNS,
            row=shown.join_token_row,
            name=lambda token: token.id,
            empty="No join tokens. Make one: kernpool join-token create",
        )
    return 0
