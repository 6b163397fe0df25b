"""`kernpool node rm`."""

import argparse

from kernpool.cli.common import add_yes, connect
from kernpool.cli.terminal import Terminal
from kernpool.errors import ApiError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("nodes", nargs="+", metavar="NODE", help="id or name")
    add_yes(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Put nodes out of the mesh; 1 when one of them could not be."""
    failed = 0
    with connect(terminal) as client:
        for name in arguments.nodes:
            try:
                node = client.node(name)
                work = f"{node.jobs_running} jobs and {node.sandboxes_running} sandboxes"
                question = (
                    f"Remove {node.name} ({node.id})? It counts as lost with {work}, and must join anew to return."
                )
                if not terminal.confirm(question, yes=arguments.yes):
                    return 1
                client.remove_node(node.id)
                terminal.line(f"{node.id}: removed")
            except ApiError as error:
                terminal.error(error)
                failed = 1
    return failed
