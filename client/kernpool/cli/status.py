"""`kernpool status`."""

import argparse
import time
from collections.abc import Mapping

from kernpool.cli import shown
from kernpool.cli.common import add_listing, connect
from kernpool.cli.terminal import Terminal, clean
from kernpool.results import Status
from kernpool.units import show_duration


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_listing(parser, "names of clusters")
    parser.add_argument("-w", "--watch", action="store_true", help="stay and show changes (on a terminal)")


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Show everything at a glance."""
    with connect(terminal) as client:
        if arguments.watch and terminal.is_rich:
            from rich.console import Group
            from rich.text import Text

            from kernpool.cli.rich_views import make_table, watch

            def view() -> Group:
                status = client.status()
                return Group(
                    Text(clean(headline(status, client.endpoint.url))),
                    "",
                    make_table(shown.NODE_COLUMNS, [*map(shown.node_row, status.nodes)], "NODES"),
                    "",
                    make_table(shown.CLUSTER_COLUMNS, [*map(shown.cluster_row, status.clusters)], "CLUSTERS"),
                    "",
                    *map(Text, counts(status).values()),
                )

            watch(view, 1.0)
        status = client.status()
        if arguments.json:
            terminal.document(status.raw)
        elif arguments.quiet:
            for cluster in status.clusters:
                terminal.line(cluster.name)
        else:
            show(status, client.endpoint.url, terminal)
    return 0


def show(status: Status, url: str, terminal: Terminal) -> None:
    """Write it all."""
    terminal.line(headline(status, url))
    terminal.line()
    terminal.table(
        shown.NODE_COLUMNS, map(shown.node_row, status.nodes), empty="No nodes. Add one: kernpool join-token create"
    )
    if status.clusters:
        terminal.line()
        terminal.table(shown.CLUSTER_COLUMNS, map(shown.cluster_row, status.clusters), empty="")
    terminal.line()
    for text in counts(status).values():
        terminal.line(text)


def headline(status: Status, url: str) -> str:
    """Say where and what the coordinator is."""
    up = show_duration(time.time() - status.server.started_unix_s) if status.server.started_unix_s else "?"
    return f"Coordinator {url}, version {status.server.version}, up {up}"


def counts(status: Status) -> Mapping[str, str]:
    """Say the numbers of jobs and sandboxes."""
    jobs = ", ".join(f"{count} {state}" for state, count in status.jobs.items() if count) or "none"
    running, parked = status.sandboxes.get("running", 0), status.sandboxes.get("parked", 0)
    return {"jobs": f"Jobs: {jobs}", "sandboxes": f"Sandboxes: {running} running, {parked} parked"}
