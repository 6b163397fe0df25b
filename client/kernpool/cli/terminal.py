"""What a person sees: plain aligned text in a pipe, colours and live lines on a terminal, and nothing that escapes."""

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, final

from kernpool.errors import KernpoolError

CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""A job's name or a node's message must not move the cursor or turn the writing direction."""


def clean(text: str) -> str:
    """Make a text from elsewhere safe to show."""
    return CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


@final
class Terminal:
    """stdout carries what was asked for, stderr what is said about it."""

    __slots__ = ("_status_shown", "can_ask", "is_live", "is_rich")

    def __init__(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, ValueError):
                stream.reconfigure(errors="replace")  # type: ignore[union-attr]
        dumb = os.environ.get("TERM") == "dumb"
        self.is_rich = _is_tty(sys.stdout) and not dumb
        """stdout is a terminal: tables have colours."""
        self.is_live = _is_tty(sys.stderr) and not dumb
        """stderr is a terminal: a status line may come and go."""
        self.can_ask = _is_tty(sys.stdin) and _is_tty(sys.stderr)
        self._status_shown = False

    # --- stdout ---

    def line(self, text: str = "") -> None:
        """Write a line of the answer."""
        self.status("")
        sys.stdout.write(f"{text}\n")

    def document(self, value: Any) -> None:
        """Write JSON, on one line in a pipe."""
        text = json.dumps(value, indent=2 if self.is_rich else None, ensure_ascii=False)
        sys.stdout.write(f"{text.encode('utf-8', 'replace').decode()}\n")

    def document_line(self, value: Any) -> None:
        """Write one line of NDJSON."""
        sys.stdout.write(f"{json.dumps(value)}\n")

    def flush(self) -> None:
        """Let a reader in a pipe see it now."""
        sys.stdout.flush()

    def write(self, data: bytes) -> None:
        """Write bytes of a log or a command as they are."""
        self.status("")
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def write_error(self, data: bytes) -> None:
        """Write bytes of a command's error output as they are."""
        self._begin_note()
        sys.stderr.buffer.write(data)
        sys.stderr.buffer.flush()

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]], *, empty: str) -> None:
        """Write a table; `empty` is said instead where there is no row."""
        cells = [[clean(cell) for cell in row] for row in rows]
        if not cells:
            self.note(empty)
        elif self.is_rich:
            from kernpool.cli.rich_views import print_table

            print_table(columns, cells)
        else:
            for text in aligned(columns, cells):
                self.line(text)

    def details(self, values: Mapping[str, str]) -> None:
        """Write names and values, one a line; further lines of a value are indented."""
        width = max(map(len, values))
        for name, value in values.items():
            first, *more = clean(value).split("\n")
            self.line(f"{name:<{width}}  {first}")
            for text in more:
                self.line(f"{'':<{width}}  {text}")

    # --- stderr ---

    def note(self, text: str) -> None:
        """Say something about the work."""
        self._begin_note()
        sys.stderr.write(f"{clean(text)}\n")
        sys.stderr.flush()

    def problem(self, message: str, hint: str = "") -> None:
        """Say what went wrong and what to do next."""
        red, plain = ("\x1b[31m", "\x1b[0m") if self.is_live and "NO_COLOR" not in os.environ else ("", "")
        self._begin_note()
        lines = clean(message).split("\n")
        sys.stderr.write(f"{red}{lines[0]}{plain}\n")
        if hint.startswith("kernpool "):
            hint = f"Try: {hint}"
        for text in (*lines[1:], *([clean(hint)] if hint else [])):
            sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def error(self, error: KernpoolError) -> None:
        """Say an error, with the places of what is wrong where it knows them."""
        self.problem(error.message, "" if getattr(error, "details", None) else error.hint)
        details: Sequence[Mapping[str, Any]] = getattr(error, "details", ())
        if len(details) == 1 and not details[0].get("line") and str(details[0].get("message", "")) in error.message:
            return  # the message has said it all
        for detail in details:
            place = f"{detail['line']}:{detail.get('column', 0)}: " if detail.get("line") else ""
            key = f"{detail['key']}: " if detail.get("key") else ""
            sys.stderr.write(f"  {clean(place + key + str(detail.get('message', '')))}\n")

    def _begin_note(self) -> None:
        self.status("")
        sys.stdout.flush()  # with both in one pipe the order stays what a terminal would show

    def status(self, text: str) -> None:
        """Show one line that the next output replaces; nothing in a pipe."""
        if self.is_live and (text or self._status_shown):
            width = max(20, _columns() - 1)
            sys.stderr.write(f"\r\x1b[K{clean(text)[:width]}")
            sys.stderr.flush()
            self._status_shown = bool(text)

    def confirm(self, question: str, *, yes: bool) -> bool:
        """Ask before something that cannot be undone. Raises KernpoolError where nobody can be asked."""
        if yes:
            return True
        if not self.can_ask:
            raise KernpoolError(f"{question} There is no terminal to ask on.", hint="Say it with --yes.")
        self.status("")
        sys.stderr.write(f"{clean(question)} [y/N] ")
        sys.stderr.flush()
        agreed = sys.stdin.readline().strip().lower() in ("y", "yes")
        if not agreed:
            self.note("Nothing was done.")
        return agreed


def aligned(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Write a table with columns two spaces apart; no trailing spaces, so that it can be compared and cut."""
    shown = [list(columns), *[[cell.replace("\n", " ") or "-" for cell in row] for row in rows]]
    widths = [max(len(row[number]) for row in shown) for number in range(len(columns))]
    for row in shown:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


def _is_tty(stream: Any) -> bool:
    try:
        return bool(stream is not None and stream.isatty())
    except ValueError:
        return False


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
