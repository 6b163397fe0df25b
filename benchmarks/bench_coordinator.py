"""What the coordinator's core costs by itself: a real store, an agent in memory, no HTTP, no TLS, no processes."""

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import quantiles

from kernpool.bodies import CommandBody, CreateSandboxesBody, SubmitJob
from kernpool_coordinator.core.config import CoreConfig
from kernpool_coordinator.core.control import ControlPlane
from kernpool_coordinator.simulation import SimAgent, SimLink
from kernpool_coordinator.tokens.actor import Actor, Role
from kernpool_mesh.messages import Resources

ANN = Actor("ann", Role.ADMIN, "default")
TRUE = CommandBody(argv=["true"])


def percentiles(samples_s: list[float]) -> str:
    cuts = quantiles(samples_s, n=100)
    return f"p50 {1000 * cuts[49]:.2f} ms, p99 {1000 * cuts[98]:.2f} ms"


async def timed(rounds: int, work: Callable[[], Awaitable[object]]) -> list[float]:
    samples = []
    for _ in range(rounds):
        start = time.perf_counter()
        await work()
        samples.append(time.perf_counter() - start)
    return samples


async def submit(plane: ControlPlane) -> object:
    return await plane.submit_job(ANN, SubmitJob(task={"run": "echo hi"}))


async def create(plane: ControlPlane, count: int) -> int:
    """Create, run, and make the lines of the answer."""
    size = 0
    body = CreateSandboxesBody(count=count, command=TRUE, remove_after=True)
    async for batch in plane.create_sandboxes(ANN, body):
        size += sum(len(json.dumps(item)) for item in batch)
    return size


def pss_mib() -> float:
    text = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) / 1024


async def measure(state_dir: Path) -> list[tuple[str, str]]:
    start = time.perf_counter()
    plane = await ControlPlane.open(CoreConfig(state_dir=state_dir))
    rows = [("open on an empty directory", f"{1000 * (time.perf_counter() - start):.0f} ms, PSS {pss_mib():.0f} MiB")]
    agent = SimAgent("n-bench", total=Resources(64_000, 1 << 20, 1 << 20))
    SimLink.connect(plane, agent)
    rows.append(("submit a job, durable, one at a time", percentiles(await timed(200, lambda: submit(plane)))))
    before, start = plane.statistics(), time.perf_counter()
    await asyncio.gather(*[submit(plane) for _ in range(1000)])
    wall = time.perf_counter() - start
    commits = plane.statistics()["store_commits_total"] - before["store_commits_total"]
    rows.append(("1,000 submits at once", f"{wall:.2f} s, {commits:.0f} commits"))
    rows.append(("create + run + result, one at a time", percentiles(await timed(300, lambda: create(plane, 1)))))
    start_cpu = time.process_time()
    samples = await timed(20, lambda: create(plane, 240))
    cpu = (time.process_time() - start_cpu) / 20
    rows.append(("240 creates + results at once", f"{percentiles(samples)}, {1000 * cpu:.1f} ms of CPU"))
    await plane.close()
    return rows


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        rows = asyncio.run(measure(Path(directory) / "coordinator"))
    print(f"coordinator core on {os.cpu_count()} cores")
    for name, value in rows:
        print(f"  {name:<40} {value}")


if __name__ == "__main__":
    main()
