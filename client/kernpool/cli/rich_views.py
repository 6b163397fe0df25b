"""Views for a terminal, by rich: imported only where stdout is one."""

from collections.abc import Callable, Sequence
from typing import Final

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kernpool.cli.terminal import clean

STATE_STYLES: Final = {
    "ready": "green",
    "up": "green",
    "running": "green",
    "succeeded": "green",
    "yes": "green",
    "pending": "yellow",
    "starting": "yellow",
    "setting_up": "yellow",
    "cancelling": "yellow",
    "suspect": "yellow",
    "failed": "red",
    "unreachable": "red",
    "no": "red",
    "lost": "red",
    "cancelled": "dim",
    "ended": "dim",
    "removed": "dim",
    "down": "dim",
}

CELLS_MAX: Final = 10_000
"""As wide as no table is: to measure one without the limit of the terminal."""

LAST_CELLS: Final = 24
"""The last column is broken rather than wider than this where the terminal is narrow."""


def make_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> Table:
    """Make a table with a colour for every state."""
    table = Table(box=None, pad_edge=False, header_style="bold", title=title or None, title_justify="left")
    for number, column in enumerate(columns):
        # Only the last column may be broken: an id or a number in two halves cannot be read, nor copied.
        width = max(cell_len(cell) for cell in (column, *(row[number] for row in rows)))
        table.add_column(column, overflow="fold", min_width=min(width, LAST_CELLS) if column == columns[-1] else width)
    for row in rows:
        table.add_row(*[Text(clean(cell) or "-", style=STATE_STYLES.get(cell, "")) for cell in row])
    return table


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    console, table = Console(), make_table(columns, rows)
    least = console.measure(table, options=console.options.update(width=CELLS_MAX)).minimum
    if console.width < least:  # rather a line that the terminal breaks than cells cut short
        console.width = least
    console.print(table)


def watch(render: Callable[[], RenderableType], every_s: float) -> None:
    """Show a view again and again until Ctrl-C."""
    import time

    with Live(render(), console=Console(), auto_refresh=False, screen=True) as live:
        while True:
            time.sleep(every_s)
            live.update(render(), refresh=True)
