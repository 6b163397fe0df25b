"""`kernpool sandbox pool ls`."""

import argparse

from kernpool.cli import shown
from kernpool.cli.common import add_json, connect
from kernpool.cli.terminal import Terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_json(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """List the pools that were set; others come and go by themselves with use."""
    with connect(terminal) as client:
        pools = client.sandboxes.pools()
    if arguments.json:
        terminal.document({"items": [pool.document() for pool in pools]})
    else:
        empty = "No pools were set: nodes keep some sandboxes parked by themselves, after recent use."
        terminal.table(shown.POOL_COLUMNS, map(shown.pool_row, pools), empty=empty)
    return 0
