"""`kernpool cancel`."""

import argparse

from kernpool.cli.common import add_yes, connect
from kernpool.cli.errors import UsageError
from kernpool.cli.logs import JOB
from kernpool.cli.queue import UNFINISHED
from kernpool.cli.terminal import Terminal
from kernpool.errors import ApiError
from kernpool.results import JobInfo
from kernpool.sdk.client import Client

EPILOG = """\
examples:
  kernpool cancel j-17 j-18
  kernpool cancel pretrain     every job of that cluster that runs or waits
  kernpool cancel -a           every job that runs or waits"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("what", nargs="*", metavar="JOB|CLUSTER", help="j-17 or 17, or a cluster's name")
    parser.add_argument("-a", "--all", action="store_true", help="every job that runs or waits")
    add_yes(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Cancel jobs; 1 when one of them could not be."""
    if bool(arguments.what) is arguments.all:
        raise UsageError("name jobs or clusters, or say --all")
    with connect(terminal) as client:
        ids = [word if word.startswith("j-") else f"j-{word}" for word in arguments.what if JOB.fullmatch(word)]
        many = [info for word in arguments.what if not JOB.fullmatch(word) for info in of_cluster(client, word)]
        many += client.jobs(state=UNFINISHED) if arguments.all else []
        if many and not terminal.confirm(f"Cancel {_named(many)}?", yes=arguments.yes):
            return 1
        failed = [job_id for job_id in [*ids, *(info.id for info in many)] if not _cancel(client, job_id, terminal)]
        if not ids and not many:
            terminal.note("No job runs or waits.")
    return 1 if failed else 0


def of_cluster(client: Client, name: str) -> list[JobInfo]:
    """List the unfinished jobs of a cluster. Raises NotFoundError."""
    client.cluster(name)
    return list(client.jobs(name, UNFINISHED))


def _named(jobs: list[JobInfo]) -> str:
    shown = ", ".join(f"{job.id} {job.name}" for job in jobs[:5])
    return f"{len(jobs)} jobs ({shown}{', ...' if len(jobs) > 5 else ''})" if len(jobs) > 1 else shown


def _cancel(client: Client, job_id: str, terminal: Terminal) -> bool:
    try:
        job = client.job(job_id)
        was = job.info.state if job.info.ended else ""
        info = job.cancel() if not was else job.info
    except ApiError as error:
        terminal.error(error)
        return False
    terminal.line(f"{info.id}: {f'had {was} already' if was else info.state}")
    return True
