"""`kernpool exec`."""

import argparse

from kernpool.cli.common import connect
from kernpool.cli.launch import submitted
from kernpool.cli.task_options import add_task_arguments, task_from
from kernpool.cli.terminal import Terminal

EPILOG = """\
examples:
  kernpool exec pretrain eval.yaml
  kernpool exec pretrain -- nvidia-smi"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("cluster", metavar="CLUSTER", help="a cluster that is there")
    add_task_arguments(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Submit a task to a cluster's queue and follow it."""
    document = task_from(arguments, terminal)
    with connect(terminal) as client:
        return submitted(client, client.exec(document, arguments.cluster), arguments, terminal)
