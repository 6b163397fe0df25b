"""Errors of the command line itself: both end with exit status 2, and nothing was made."""

from kernpool.errors import InvalidError


class UsageError(Exception):
    """The command line is wrong; the message says what to type instead."""


class TaskFileError(InvalidError):
    """The task file is wrong; the message tells each problem with its place, as compilers do."""
