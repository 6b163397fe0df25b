"""`kernpool api stop`."""

import argparse

from kernpool.cli.common import add_yes
from kernpool.cli.terminal import Terminal
from kernpool.embedded.layout import Home
from kernpool.embedded.stop import current_work, stop


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--keep-work", action="store_true", help="leave jobs and sandboxes running; the next start finds them"
    )
    add_yes(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Stop everything of this machine."""
    home = Home.find()
    work = current_work(home)
    if work.any and not arguments.keep_work:
        question = f"{work} would be ended (--keep-work leaves them running). Stop?"
        if not terminal.confirm(question, yes=arguments.yes):
            return 1
    stopped = stop(home, keep_work=arguments.keep_work, say=terminal.note)
    if not stopped.was_running:
        terminal.line("Kernpool was not running on this machine.")
    elif arguments.keep_work and work.any:
        terminal.line(f"Stopped. {work} left running; `kernpool api start` finds them again.")
    else:
        terminal.line("Stopped.")
    return 0
