"""`kernpool logs`."""

import argparse
import re

from kernpool.cli.common import WHOLE, connect
from kernpool.cli.follow import follow
from kernpool.cli.terminal import Terminal
from kernpool.errors import NotFoundError
from kernpool.sdk.client import Client
from kernpool.sdk.jobs import Job

EPILOG = """\
examples:
  kernpool logs j-17              from its beginning to its end, as it comes
  kernpool logs pretrain          of the newest job of that cluster
  kernpool logs                   of the newest job of all
  kernpool logs --no-follow --tail 20 j-17

Followed to the job's end, the exit status is that of the job, as with `launch`; with --no-follow it is 0."""

JOB = re.compile(r"j-\d+|\d+")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("what", nargs="?", metavar="JOB|CLUSTER", help="j-17 or 17, or a cluster's name")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("-f", "--follow", action="store_true", default=True, help="until the job ends (the default)")
    how.add_argument("--no-follow", dest="follow", action="store_false", help="what is there now")
    parser.add_argument("--tail", type=WHOLE, metavar="N", help="begin with the last N lines")
    parser.add_argument(
        "--index", type=WHOLE, default=0, metavar="RANK", help="of this rank of a job on many nodes (0)"
    )


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Write a log."""
    with connect(terminal) as client:
        job = find_job(client, arguments.what)
        if arguments.follow:
            return follow(
                job, client, terminal, write=terminal.write, index=arguments.index, tail=arguments.tail, quiet=False
            )
        for data in job.logs(follow=False, tail=arguments.tail, index=arguments.index):
            terminal.write(data)
    return 0


def find_job(client: Client, what: str | None) -> Job:
    """Find a job by its id, or the newest of a cluster or of all. Raises NotFoundError."""
    if what and JOB.fullmatch(what):
        return client.job(what if what.startswith("j-") else f"j-{what}")
    if what:
        client.cluster(what)
    for info in client.jobs(what):
        return Job(client, info)
    where = f"Cluster {what} has had no job yet." if what else "There are no jobs yet."
    raise NotFoundError(where, hint="Run one: kernpool launch -- echo hello", code="not_found")
