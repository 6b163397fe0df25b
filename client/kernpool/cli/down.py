"""`kernpool down`."""

import argparse

from kernpool.cli.cancel import of_cluster
from kernpool.cli.common import add_yes, connect
from kernpool.cli.errors import UsageError
from kernpool.cli.terminal import Terminal
from kernpool.errors import ApiError
from kernpool.sdk.client import Client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("clusters", nargs="*", metavar="CLUSTER")
    parser.add_argument("-a", "--all", action="store_true", help="every cluster")
    add_yes(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Take clusters down; 1 when one of them could not be."""
    if bool(arguments.clusters) is arguments.all:
        raise UsageError("name clusters, or say --all")
    with connect(terminal) as client:
        names = [cluster.name for cluster in client.clusters()] if arguments.all else arguments.clusters
        failed = [name for name in names if not _down(client, name, terminal, yes=arguments.yes)]
        if not names:
            terminal.note("There are no clusters.")
    return 1 if failed else 0


def _down(client: Client, name: str, terminal: Terminal, *, yes: bool) -> bool:
    try:
        jobs = of_cluster(client, name)
        many = f"{len(jobs)} jobs that run or wait" if len(jobs) != 1 else f"{jobs[0].id} {jobs[0].name}"
        if jobs and not terminal.confirm(f"Take {name} down and cancel {many}?", yes=yes):
            return False
        client.down(name)
    except ApiError as error:
        terminal.error(error)
        return False
    terminal.line(f"{name}: down")
    return True
