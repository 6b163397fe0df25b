"""`kernpool events`."""

import argparse

from kernpool.cli import shown
from kernpool.cli.common import WHOLE, connect
from kernpool.cli.terminal import Terminal, aligned
from kernpool.protocol import calls
from kernpool.results import Event
from kernpool.sdk.client import Client

LAST = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("-f", "--follow", action="store_true", help="also those to come, until Ctrl-C")
    parser.add_argument("--after", type=WHOLE, metavar="ID", help=f"those after this one (the last {LAST})")
    parser.add_argument("--json", action="store_true", help="as NDJSON")


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """List events, oldest first."""
    with connect(terminal) as client:
        events = past(client, arguments.after)
        if arguments.json:
            for event in events:
                terminal.document_line(event.raw)
        else:
            terminal.table(shown.EVENT_COLUMNS, map(shown.event_row, events), empty="Nothing has happened yet.")
        if arguments.follow:
            after = events[-1].id if events else arguments.after
            for event in client.events(after, follow=True):
                _one(event, arguments, terminal)
    return 0


def past(client: Client, after: int | None) -> list[Event]:
    """Give the events after an id, or the last ones."""
    if after is not None:
        return list(client.events(after))
    return list(client.events(max(0, newest_id(client) - LAST)))


def newest_id(client: Client) -> int:
    """Find the newest event's id: by doubling, then by halving, as a log of millions must not be read to its end."""

    def is_beyond(event_id: int) -> bool:
        return not client.run(calls.events(event_id, limit=1)).items

    high = 1
    while not is_beyond(high):
        high *= 2
    low = high // 2
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_beyond(middle) else (middle + 1, high)
    return low


def _one(event: Event, arguments: argparse.Namespace, terminal: Terminal) -> None:
    if arguments.json:
        terminal.document_line(event.raw)
    else:
        terminal.line("  ".join(list(aligned([""] * 6, [shown.event_row(event)]))[1:]))
    terminal.flush()
