"""`kernpool join-token create`."""

import argparse

from kernpool.cli.common import NATURAL, POSITIVE_DURATION, add_json, connect
from kernpool.cli.terminal import Terminal
from kernpool.endpoint import LOOPBACK, check_url
from kernpool.units import show_duration


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--uses", type=NATURAL, default=1, metavar="N", help="how many machines may join with it (1)")
    parser.add_argument(
        "--expires", type=POSITIVE_DURATION, default=900.0, metavar="TIME", help="it counts so long (15m)"
    )
    parser.add_argument("--pool", default="default", metavar="NAME", help="pool that the machines join (default)")
    parser.add_argument(
        "--node", metavar="ID", help="only for this node, which joins anew; its old certificate is revoked"
    )
    add_json(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Make a token and show it, once, with the command to type."""
    with connect(terminal, start=True) as client:
        made = client.create_join_token(
            uses=arguments.uses, expires_s=arguments.expires, pool=arguments.pool, node_id=arguments.node
        )
        node_url = client.info().node_url
    if arguments.json:
        terminal.document(made.raw)
        return 0
    terminal.line(made.token or "")
    times = "one machine" if arguments.uses == 1 else f"{arguments.uses} machines"
    terminal.note(f"For {times}, within {show_duration(arguments.expires)}. On the machine, with the token in a file:")
    terminal.note(f"  kp-agent --coordinator {node_url} --join-token-file FILE")
    if check_url(node_url, "the node URL").hostname in LOOPBACK:
        terminal.note(
            "Agents elsewhere cannot reach that address. Listen on another one:"
            " kernpool api stop --keep-work; kernpool api start --node-listen HOST:46581"
        )
    return 0
