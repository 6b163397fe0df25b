"""How every listing is written: a table, ids alone, or JSON."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from kernpool.cli.terminal import Terminal
from kernpool.protocol.fields import Object


class Shown(Protocol):
    """A record that keeps its JSON."""

    @property
    def raw(self) -> Object:
        """The JSON object."""
        ...


T = TypeVar("T", bound=Shown)


def write(
    terminal: Terminal,
    arguments: argparse.Namespace,
    items: Iterable[T],
    *,
    columns: Sequence[str],
    row: Callable[[T], Sequence[str]],
    name: Callable[[T], str],
    empty: str,
) -> None:
    """Write the items as --json, -q or neither ask."""
    if arguments.json:
        terminal.document({"items": [item.raw for item in items]})
    elif arguments.quiet:
        for item in items:
            terminal.line(name(item))
    else:
        terminal.table(columns, map(row, items), empty=empty)
