"""`kernpool queue`."""

import argparse
from itertools import islice

from kernpool.cli import listing, shown
from kernpool.cli.common import NATURAL, add_listing, connect
from kernpool.cli.terminal import Terminal
from kernpool.results import JobInfo
from kernpool.sdk.client import Client

ENDED_SHOWN = 20
UNFINISHED = ("pending", "starting", "setting_up", "running", "cancelling")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("cluster", nargs="?", metavar="CLUSTER", help="of this cluster alone")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("-s", "--skip-finished", action="store_true", help="only jobs that run or wait")
    which.add_argument("-a", "--all", action="store_true", help="also all that ended long ago")
    which.add_argument("-n", "--limit", type=NATURAL, metavar="N", help="the newest N")
    parser.add_argument("-w", "--watch", action="store_true", help="stay and show changes (on a terminal)")
    add_listing(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """List jobs, newest first."""
    with connect(terminal) as client:
        if arguments.cluster:
            client.cluster(arguments.cluster)  # a mistyped name is an error, not an empty queue
        if arguments.watch and terminal.is_rich:
            from kernpool.cli.rich_views import make_table, watch

            watch(lambda: make_table(shown.JOB_COLUMNS, [*map(shown.job_row, _jobs(client, arguments))]), 1.0)
        listing.write(
            terminal,
            arguments,
            _jobs(client, arguments),
            columns=shown.JOB_COLUMNS,
            row=shown.job_row,
            name=lambda job: job.id,
            empty="No jobs. Run one: kernpool launch -- echo hello",
        )
    return 0


def _jobs(client: Client, arguments: argparse.Namespace) -> list[JobInfo]:
    state = UNFINISHED if arguments.skip_finished else ()
    jobs = client.jobs(arguments.cluster, state)
    if arguments.limit:
        return list(islice(jobs, arguments.limit))
    if arguments.all or arguments.skip_finished:
        return list(jobs)
    ended = 0
    kept: list[JobInfo] = []
    for job in islice(jobs, 10_000):
        ended += job.ended
        if ended > ENDED_SHOWN and job.ended:
            break
        kept.append(job)
    seen = {job.id for job in kept}
    unfinished = client.jobs(arguments.cluster, UNFINISHED) if ended > ENDED_SHOWN else ()
    return [*kept, *(job for job in unfinished if job.id not in seen)]
