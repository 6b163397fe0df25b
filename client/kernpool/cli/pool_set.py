"""`kernpool sandbox pool set`."""

import argparse

from kernpool.cli.common import DURATION, WHOLE, connect
from kernpool.cli.template_options import add_template_arguments, template_options
from kernpool.cli.terminal import Terminal
from kernpool.options import template_of
from kernpool.results import Pool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--parked", type=WHOLE, required=True, metavar="N", help="how many stand ready on each node; 0: none ever"
    )
    parser.add_argument(
        "--drain-after", type=DURATION, default=600.0, metavar="TIME", help="unused for so long they go; 0: never (10m)"
    )
    add_template_arguments(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Set the pool of one template; the others stay as they are."""
    template = template_of(template_options(arguments))
    wanted = Pool(template, arguments.parked, arguments.drain_after)
    with connect(terminal, start=True) as client:
        others = [pool for pool in client.sandboxes.pools() if pool.template != template]
        client.sandboxes.set_pools([*others, wanted])
    terminal.line(f"{template.image}: {arguments.parked} parked")
    return 0
