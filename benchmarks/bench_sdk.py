"""What a user waits for, through the SDK and the command line, on an install of its own: python benchmarks/bench_sdk.py

Starts coordinator and agent in a temporary KERNPOOL_HOME, prints one table, ends and removes them. `--quick`: fewer
rounds.
"""

import argparse
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from kernpool import Pool, Template
from kernpool.embedded.layout import Home
from kernpool.embedded.start import start
from kernpool.embedded.stop import stop
from kernpool.results import Limits
from kernpool.sdk import Client

BURST = 240
POOL_WAIT_S = 60.0
HEARTBEAT_S = 5.0
PIDS = 4000
"""A limit of its own makes a template that nobody else used."""
TEMPLATE = Template(limits=Limits(pids=PIDS))
Row = tuple[str, str, str]


def main() -> int:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    rounds = 40 if parser.parse_args().quick else 300
    home = Home(Path(tempfile.mkdtemp(prefix="kp-bench-", dir="/tmp")))
    os.environ["KERNPOOL_HOME"] = str(home.path)
    for name in ("KERNPOOL_API_URL", "KERNPOOL_API_TOKEN"):
        os.environ.pop(name, None)
    try:
        began_s = time.monotonic()
        start(home, api_port=0, node_listen="127.0.0.1:0", say=note)
        print_rows(
            [("start of coordinator, agent and spawner until the node is ready", s(time.monotonic() - began_s), "")]
        )
        with Client() as client:
            print_rows(measure(client, rounds))
    finally:
        stop(home, keep_work=False, say=note)
        shutil.rmtree(home.path, ignore_errors=True)
    print(f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}, Linux {platform.release()}, "
          f"Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}")  # fmt: skip
    return 0


def measure(client: Client, rounds: int) -> Iterator[Row]:
    """Give the rows as they come."""
    (node,) = client.nodes()
    if node.isolation:
        yield from one_at_a_time(client, rounds)
        yield from bursts(client)
    else:
        note(f"no sandboxes here: {'; '.join(node.isolation_problems)}")
    yield from launches(client, max(10, rounds // 10))
    yield from commands(max(10, rounds // 15))


def one_at_a_time(client: Client, rounds: int) -> Iterator[Row]:
    """Create + `true` + its result, one after the other."""
    seen: list[bool] = []

    def once() -> None:
        (item,) = client.sandboxes.create(command=["true"], pids=PIDS, remove_after=True)
        assert item.ok, item
        seen.append(item.sandbox.parked)

    for number, what, reach in (
        (64, "create + run `true` + result, parked", "p50 <= 3 ms, p99 <= 15 ms"),
        (0, "the same with an empty pool", "p50 <= 6 ms"),
    ):
        keep_parked(client, number)
        seen.clear()
        yield row(what, timed(once, rounds), reach)
        others = seen.count(number == 0)
        if others:
            note(f"{others} of {len(seen)} were {'cold' if number else 'parked'}")
    with client.sandboxes.create_one() as sandbox:
        run = timed(lambda: sandbox.exec(["true"]).check(), rounds)
    yield row("exec `true` in a kept sandbox", run, "")


def bursts(client: Client) -> Iterator[Row]:
    """240 at once, each running a command."""
    for number, how, reach in ((0, "none parked", "<= 0.6 s"), (BURST, "parked", "<= 0.2 s")):
        walls = []
        for _ in range(5):
            keep_parked(client, number)
            began_s = time.monotonic()
            batch = client.sandboxes.create(BURST, command=["true"], pids=PIDS, remove_after=True)
            walls.append(time.monotonic() - began_s)
            assert batch.ok, next(item for item in batch if not item.ok)
            parked = sum(item.sandbox.parked for item in batch)
            if parked != number:
                note(f"{parked} of {BURST} were parked")
        yield f"{BURST} at once, all results, {how} (5 rounds)", ", ".join(map(s, sorted(walls))), reach


def launches(client: Client, rounds: int) -> Iterator[Row]:
    """From submit to the first byte of the log."""

    def in_sdk() -> None:
        job = client.launch({"run": "echo hi"})
        assert next(job.logs()) == b"hi\n"

    yield row("launch `echo hi` to the first log byte, in the SDK", timed(in_sdk, rounds), "p50 <= 40 ms")

    def as_command() -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "kernpool", "launch", "-q", "--", "echo hi"], stdout=subprocess.PIPE
        )
        with process:
            assert process.stdout is not None
            assert process.stdout.read(1) == b"h"
            seen_s.append(time.monotonic())
            process.stdout.read()
        assert process.returncode == 0

    seen_s: list[float] = []
    began = time.monotonic()
    firsts, wholes = [], []
    for _ in range(rounds):
        began = time.monotonic()
        as_command()
        firsts.append((seen_s[-1] - began) * 1000)
        wholes.append((time.monotonic() - began) * 1000)
    yield row("the same as a command, to its first byte", firsts, "")
    yield row("the same as a command, whole process", wholes, "p50 <= 350 ms")


def commands(rounds: int) -> Iterator[Row]:
    """Wall and CPU of the everyday commands, output piped."""
    for words, reach in ((["--version"], "<= 150 ms of CPU"), (["status"], "<= 300 ms of CPU"), (["queue"], "")):
        walls, cpus = [], []
        for _ in range(rounds):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            began_s = time.monotonic()
            command = [sys.executable, "-m", "kernpool", *words]
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            walls.append((time.monotonic() - began_s) * 1000)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpus.append((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000)
        yield row(f"kernpool {' '.join(words)}, wall", walls, "")
        yield row(f"kernpool {' '.join(words)}, CPU", cpus, reach)


def keep_parked(client: Client, number: int) -> None:
    """Set the pool and wait until it is so full; 0: no pool, for a template whose image is ready."""
    client.sandboxes.create_one(pids=PIDS).remove()
    client.sandboxes.set_pools([Pool(TEMPLATE, number, 0.0)])
    until_s = time.monotonic() + POOL_WAIT_S
    time.sleep(HEARTBEAT_S + 1)  # what the coordinator tells of the pool is as old as the node's last heartbeat
    while client.status().sandboxes.get("parked", 0) != number:
        assert time.monotonic() < until_s, "the pool does not fill"
        time.sleep(0.02)


def timed(action: Callable[[], object], rounds: int) -> list[float]:
    """Give the milliseconds of each round; the first tenth warms up."""
    walls = []
    for _ in range(rounds + rounds // 10):
        began_s = time.perf_counter()
        action()
        walls.append((time.perf_counter() - began_s) * 1000)
    return walls[rounds // 10 :]


def row(what: str, walls_ms: list[float], reach: str) -> Row:
    """Make a row of p50 and p99."""
    ordered = sorted(walls_ms)
    p50, p99 = ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return what, f"p50 {p50:.2f} ms, p99 {p99:.2f} ms (n={len(ordered)})", reach


def s(seconds: float) -> str:
    """Write seconds."""
    return f"{seconds:.2f} s"


def print_rows(rows: "Iterator[Row] | list[Row]") -> None:
    """Print rows as they come."""
    for what, value, reach in rows:
        print(f"{what:<66} {value:<42} {reach}", flush=True)


def note(text: str) -> None:
    """Say something that is no figure."""
    print(f"# {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
