"""The `kernpool` command: finds the subcommand in a table and imports that one alone."""

import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED: Final = 130
"""Ctrl-C, as shells count it."""
PIPE_CLOSED: Final = 141
"""The reader of our output went away (`| head`)."""


def main(argv: "Sequence[str] | None" = None) -> int:
    """Run one command line; gives its exit status (docs/cli.md has the list)."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words == ["--version"]:
        from kernpool import __version__

        print(f"kernpool {__version__}")
        return 0
    from kernpool.cli.dispatch import run

    try:
        status = run(words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # What is still buffered has no reader: the interpreter must not try to write it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    return status
