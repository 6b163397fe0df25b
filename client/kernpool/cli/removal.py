"""Removing named things one by one: each is told, and one that fails does not keep the others."""

from collections.abc import Callable, Sequence

from kernpool.cli.terminal import Terminal
from kernpool.errors import ApiError


def remove_each(names: Sequence[str], remove: Callable[[str], None], terminal: Terminal) -> int:
    """Remove each; gives the exit status."""
    failed = 0
    for name in names:
        try:
            remove(name)
        except ApiError as error:
            terminal.error(error)
            failed = 1
        else:
            terminal.line(f"{name}: removed")
    return failed
