"""`kernpool token create`."""

import argparse

from kernpool.cli.common import add_json, connect
from kernpool.cli.terminal import Terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("name", metavar="NAME", help="who or what will use it")
    parser.add_argument("--role", choices=("admin", "user", "viewer"), default="user", help="what it may do (user)")
    parser.add_argument("--workspace", default="default", help="where it may do it (default)")
    add_json(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Make a token and show it, once."""
    with connect(terminal, start=True) as client:
        made = client.create_token(arguments.name, role=arguments.role, workspace=arguments.workspace)
        if arguments.json:
            terminal.document(made.raw)
            return 0
        terminal.line(made.token or "")
        terminal.note(f"Shown this once. Use it: KERNPOOL_API_URL={client.endpoint.url} KERNPOOL_API_TOKEN=...")
        terminal.note(f"Make it worthless: kernpool token rm {made.id}")
    return 0
