"""`kernpool launch`."""

import argparse

from kernpool.cli.common import connect
from kernpool.cli.follow import detach_or_cancel, follow
from kernpool.cli.task_options import add_task_arguments, task_from
from kernpool.cli.terminal import Terminal
from kernpool.sdk.client import Client
from kernpool.sdk.jobs import Job

EPILOG = """\
examples:
  kernpool launch train.yaml                     run a task file and show its log
  kernpool launch -c pretrain train.yaml         the same, and keep its capacity as cluster `pretrain`
  kernpool launch -- python3 -c 'print(6*7)'     run a command
  kernpool launch -- 'make && make check'        one word is shell text
  kernpool launch -d --gpus H100:8 train.yaml    submit and leave

Ctrl-C leaves the job running; a second one within 3 s cancels it.
The exit status is that of the job (docs/cli.md has the others)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("-c", "--cluster", metavar="NAME", help="hold the capacity under this name, with its own queue")
    add_task_arguments(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Submit a task and follow it."""
    document = task_from(arguments, terminal)
    with connect(terminal, start=True) as client:
        return submitted(client, client.launch(document, arguments.cluster), arguments, terminal)


def submitted(client: Client, job: Job, arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Say what was submitted, and follow it unless detached."""
    if arguments.detach:
        if arguments.json:
            terminal.document(job.info.raw)
        else:
            terminal.line(job.id)
            if terminal.is_rich and not arguments.quiet:
                terminal.note(f"Its log: kernpool logs {job.id}")
        return 0
    if not arguments.quiet:
        terminal.note(f"{job.id} {job.info.name}: submitted")
    try:
        write = terminal.write_error if arguments.json else terminal.write
        status = follow(job, client, terminal, write=write, quiet=arguments.quiet)
    except KeyboardInterrupt:
        status = detach_or_cancel(job, terminal)
    if arguments.json:
        terminal.document(job.info.raw)
    return status
