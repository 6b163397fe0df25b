"""`kernpool sandbox pool rm`."""

import argparse

from kernpool.cli.common import connect
from kernpool.cli.template_options import add_template_arguments, template_options
from kernpool.cli.terminal import Terminal
from kernpool.errors import NotFoundError
from kernpool.options import template_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_template_arguments(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Drain the pool of one template."""
    template = template_of(template_options(arguments))
    with connect(terminal) as client:
        pools = client.sandboxes.pools()
        kept = [pool for pool in pools if pool.template != template]
        if len(kept) == len(pools):
            raise NotFoundError(
                "No pool was set for this image and these limits.",
                hint="See: kernpool sandbox pool ls",
                code="not_found",
            )
        client.sandboxes.set_pools(kept)
    terminal.line(f"{template.image}: drained")
    return 0
