"""`kernpool api start`."""

import argparse

from kernpool.cli.common import WHOLE
from kernpool.cli.errors import UsageError
from kernpool.cli.terminal import Terminal
from kernpool.embedded.layout import Home
from kernpool.embedded.start import start


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--port", type=WHOLE, metavar="N", help="of the API on 127.0.0.1; 0: any free one (46580)")
    parser.add_argument(
        "--node-listen", metavar="HOST:PORT", help="where agents of other machines dial (127.0.0.1:46581)"
    )


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Start the coordinator and the agent of this machine."""
    listen = arguments.node_listen
    if listen is not None:
        host, _, port = listen.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            raise UsageError(f"--node-listen {listen!r}: expected HOST:PORT like 0.0.0.0:46581")
    if arguments.port is not None and arguments.port > 65535:
        raise UsageError(f"--port {arguments.port}: expected a port from 0 to 65535")
    home = Home.find()
    found = start(home, api_port=arguments.port, node_listen=listen, say=terminal.note)
    if found.was_running:
        terminal.line(f"Kernpool is already running: {found.url}")
        if arguments.port is not None or listen is not None:
            terminal.note("Its addresses stay as they are until: kernpool api stop --keep-work")
    else:
        terminal.line(f"Ready: {found.url}, state in {home.path}")
    return 0
