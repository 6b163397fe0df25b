"""`kernpool sandbox extend`."""

import argparse

from kernpool.cli.common import POSITIVE_DURATION, connect
from kernpool.cli.sandbox_ids import find_id
from kernpool.cli.terminal import Terminal
from kernpool.errors import ApiError
from kernpool.units import show_duration


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("ids", nargs="+", metavar="ID", help="id, or a beginning of it that fits no other")
    parser.add_argument(
        "--ttl", type=POSITIVE_DURATION, required=True, metavar="TIME", help="from now on: 90s, 10m, 2h"
    )


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Count times to live anew; 1 when one of them could not be."""
    failed = 0
    with connect(terminal) as client:
        for text in arguments.ids:
            try:
                sandbox = client.sandboxes.handle(find_id(client, text))
                sandbox.extend(arguments.ttl)
                terminal.line(f"{sandbox.id}: {show_duration(arguments.ttl)} from now")
            except ApiError as error:
                terminal.error(error)
                failed = 1
    return failed
