"""`kernpool sandbox exec`."""

import argparse
from typing import TYPE_CHECKING

from kernpool.cli.common import DURATION, connect, environment
from kernpool.cli.errors import UsageError
from kernpool.cli.run_command import run_command
from kernpool.cli.sandbox_ids import find_id
from kernpool.cli.terminal import Terminal

if TYPE_CHECKING:
    from kernpool.options import CommandOptions

EPILOG = """\
examples:
  kernpool sandbox exec sb-k3v -- ls -l /
  echo 'print(6*7)' | kernpool sandbox exec -i sb-k3v -- python3

The exit status is that of the command. Ctrl-C is passed on to it; a second one kills it, a third one leaves it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("id", metavar="ID", help="id, or a beginning of it that fits no other")
    parser.add_argument(
        "-e",
        "--env",
        action="append",
        default=[],
        metavar="KEY[=VALUE]",
        help="variable; KEY alone takes its value from here",
    )
    parser.add_argument("-w", "--cwd", default="", metavar="DIR", help="where it starts (as its template says)")
    parser.add_argument("-u", "--user", default="", metavar="NAME", help="who it runs as (as its template says)")
    parser.add_argument(
        "--timeout", type=DURATION, default=0.0, metavar="TIME", help="kill it and all its children then"
    )
    parser.add_argument("-i", "--stdin", action="store_true", help="pass our stdin to it")


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Run a command in a sandbox."""
    if not arguments.argv:
        raise UsageError("give the command after --")
    options: CommandOptions = {
        "env": environment(arguments.env, "--env"),
        "cwd": arguments.cwd,
        "user": arguments.user,
        "timeout_s": arguments.timeout,
    }
    with connect(terminal) as client:
        sandbox = client.sandboxes.handle(find_id(client, arguments.id))
        return run_command(sandbox, arguments.argv, options, terminal, pass_stdin=arguments.stdin)
