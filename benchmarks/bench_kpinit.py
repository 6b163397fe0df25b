"""What kp-init itself costs: sandboxes made, handed out and used from one asyncio loop, without runtime or coordinator.

    python benchmarks/bench_kpinit.py [--count 240] [--parked 500]

As root it measures the whole of it (id range, idmapped layer); as an ordinary user what a rootless spawner does.
"""

import argparse
import asyncio
import datetime
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "sandbox"))

from kernpool_sandbox.kpinit.binary import find  # noqa: E402
from kernpool_sandbox.kpinit.channel import wait_fd  # noqa: E402
from kernpool_sandbox.kpinit.init import InitClient  # noqa: E402
from kernpool_sandbox.kpinit.launch import SpawnerConfig, ensure_spawner, remove_runtime_dir  # noqa: E402
from kernpool_sandbox.kpinit.plan import (  # noqa: E402
    Bind,
    Dev,
    Dir,
    Ended,
    ExecExited,
    ExecSpec,
    File,
    InitEvent,
    MountOp,
    Overlay,
    Proc,
    ReadOnly,
    SandboxPlan,
    Staging,
    Symlink,
    Tmpfs,
)
from kernpool_sandbox.kpinit.spawner import SpawnerClient  # noqa: E402

UID_BASE = 0x60000000
MEMORY_CGROUPS = Path("/sys/fs/cgroup/memory")
Rows = list[tuple[str, list[float]]]


def image(*, idmap: bool) -> tuple[MountOp, ...]:
    """Return a host image as the runtime makes one, but small."""
    return (
        Staging(64 << 20),
        Overlay("/usr", ("/usr",), idmap=True) if idmap else Bind("/usr", "/usr"),
        *(Symlink(f"/{name}", f"usr/{name}") for name in ("bin", "sbin", "lib", "lib64")),
        Tmpfs("/tmp", 64 << 20, 0o1777),
        Dir("/root", 0o700),
        File("/etc/passwd", 0o644, b"root:x:0:0::/root:/bin/sh\n"),
        Proc(),
        Dev(),
        ReadOnly("/proc/sys"),
    )


class Box:
    """One sandbox and the exit that is waited for."""

    def __init__(self) -> None:
        self.client: InitClient
        self.exit: asyncio.Future[ExecExited] = asyncio.get_running_loop().create_future()
        self.exec_id = 0

    def on_event(self, event: InitEvent) -> None:
        if not isinstance(event, Ended) and not self.exit.done():
            self.exit.set_result(event)

    async def run(self) -> None:
        """Run `true` and take its (empty) output and its exit."""
        self.exec_id += 1
        self.exit = asyncio.get_running_loop().create_future()
        started = await self.client.exec(ExecSpec(self.exec_id, ("/usr/bin/true",)))
        await self.exit
        for fd in (started.stdout_fd, started.stderr_fd):
            while True:
                try:
                    if not os.read(fd, 4096):
                        break
                except BlockingIOError:
                    await wait_fd(fd)
            os.close(fd)


class Bench:
    """A spawner and the sandboxes that are measured."""

    def __init__(self, spawner: SpawnerClient) -> None:
        self.spawner = spawner
        self.number = 0
        self.pidfds: list[int] = []

    async def spawn(self, cgroups: tuple[str, ...] = ()) -> str:
        """Make a sandbox; return its socket."""
        self.number += 1
        count = 65536 if self.spawner.privileged else 0
        start = UID_BASE + 65536 * (self.number % 4096) if count else 0
        name = f"bench-{os.getpid()}-{self.number}"
        spawned = await self.spawner.spawn(name, SandboxPlan((), start, count, cgroups=cgroups), template="bench")
        self.pidfds.append(spawned.pidfd)
        return spawned.socket_path

    async def park(self, cgroups: tuple[str, ...] = ()) -> Box:
        """Make a sandbox and wait until it is ready."""
        box = Box()
        box.client = await InitClient.attach(await self.spawn(cgroups), box.on_event)
        return box

    async def end(self, boxes: list[Box]) -> float:
        """End sandboxes; return how long it took until all were gone."""
        began = time.perf_counter()
        await asyncio.gather(*(box.client.shutdown() for box in boxes))
        took = time.perf_counter() - began
        for box in boxes:
            box.client.close()
        for pidfd in self.pidfds:
            os.close(pidfd)
        self.pidfds.clear()
        return took


async def use(box: Box) -> None:
    await box.client.claim("bench", ttl_s=60)
    await box.run()


async def one_by_one(bench: Bench, rounds: int) -> Rows:
    """Cold sandboxes, one after the other; they end together, because an end goes on in the kernel for a while."""
    boxes: list[Box] = []
    spawned: list[float] = []
    ready: list[float] = []
    used: list[float] = []
    for _ in range(rounds):
        box = Box()
        began = time.perf_counter()
        path = await bench.spawn()
        spawned.append(time.perf_counter() - began)
        box.client = await InitClient.attach(path, box.on_event)
        ready.append(time.perf_counter() - began)
        await use(box)
        used.append(time.perf_counter() - began)
        boxes.append(box)
    await bench.end(boxes)
    return [("cold: spawn answered", spawned), ("cold: ready (hello)", ready), ("cold: + claim + true + exit", used)]


async def from_the_pool(bench: Bench, rounds: int) -> Rows:
    """Parked sandboxes, one after the other, then the same one again and again."""
    boxes = [await bench.park() for _ in range(rounds)]
    used: list[float] = []
    again: list[float] = []
    pings: list[float] = []
    for box in boxes:
        began = time.perf_counter()
        await use(box)
        used.append(time.perf_counter() - began)
    for _ in range(rounds):
        began = time.perf_counter()
        await boxes[0].run()
        again.append(time.perf_counter() - began)
        await boxes[0].client.ack(boxes[0].exec_id)
        began = time.perf_counter()
        await boxes[0].client.ping()
        pings.append(time.perf_counter() - began)
    await bench.end(boxes)
    return [("parked: claim + true + exit", used), ("claimed: true + exit", again), ("ping", pings)]


async def at_once(bench: Bench, count: int) -> Rows:
    """Many at the same time: cold, then parked; and the end of them all."""

    async def cold() -> Box:
        box = await bench.park()
        await use(box)
        return box

    began = time.perf_counter()
    boxes = list(await asyncio.gather(*(cold() for _ in range(count))))
    cold_wall = time.perf_counter() - began
    end_wall = await bench.end(boxes)
    boxes = list(await asyncio.gather(*(bench.park() for _ in range(count))))
    began = time.perf_counter()
    await asyncio.gather(*(use(box) for box in boxes))
    parked_wall = time.perf_counter() - began
    await bench.end(boxes)
    return [
        (f"{count} at once, cold: all used", [cold_wall]),
        (f"{count} at once, parked: all used", [parked_wall]),
        (f"{count} at once: all ended", [end_wall]),
    ]


def available_kib() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))


async def memory(bench: Bench, count: int) -> list[str]:
    """Measure what parked sandboxes take, by their memory cgroup where there is one (v1, root)."""
    cgroup = MEMORY_CGROUPS / f"kp-bench-{os.getpid()}"
    grouped = os.access(MEMORY_CGROUPS, os.W_OK) and (MEMORY_CGROUPS / "tasks").exists()
    if grouped:
        cgroup.mkdir()
    before = available_kib()
    boxes = [await bench.park((str(cgroup),) if grouped else ()) for _ in range(count)]
    lines = [f"{count} parked: {(before - available_kib()) / count:.0f} KiB each of the machine's available memory"]
    if grouped:
        used = int((cgroup / "memory.usage_in_bytes").read_text()) / 1024 / count
        lines.append(f"{count} parked: {used:.0f} KiB each charged to their memory cgroup")
    await bench.end(boxes)
    if grouped:
        cgroup.rmdir()
    return lines


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000


def show(rows: Rows, say: Callable[[str], None] = print) -> None:
    for name, values in rows:
        p50, p99 = percentile(values, 0.5), percentile(values, 0.99)
        say(f"  {name:36} {p50:9.2f} {p99:9.2f}   n={len(values)}")


async def main(arguments: argparse.Namespace) -> None:
    state = Path(tempfile.mkdtemp(prefix="kp-bench-", dir="/tmp"))
    cgroups = (MEMORY_CGROUPS,) if MEMORY_CGROUPS.is_dir() else ()
    ids = ((UID_BASE, UID_BASE + 65536 * 4096),) if os.geteuid() == 0 else ()
    config = SpawnerConfig(state / "w", allow_sources=(Path("/usr"),), allow_cgroups=cgroups, allow_uids=ids)
    await ensure_spawner(config, find(), log_path=state / "log")
    spawner = await SpawnerClient.connect(config.socket_path)
    try:
        await spawner.define_template("bench", image(idmap=spawner.privileged))
        bench = Bench(spawner)
        kind = "privileged: id range, idmapped overlay" if spawner.privileged else "rootless: one id, read-only bind"
        print(f"kp-init, {kind}")
        print(f"{os.cpu_count()} cores, Linux {os.uname().release}, load {os.getloadavg()[0]:.1f}, "
              f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC")  # fmt: skip
        print(f"  {'':36} {'p50 ms':>9} {'p99 ms':>9}")
        show(await one_by_one(bench, arguments.rounds))
        show(await from_the_pool(bench, arguments.rounds))
        for _ in range(3):
            show(await at_once(bench, arguments.count))
        for line in await memory(bench, arguments.parked):
            print(f"  {line}")
    finally:
        await spawner.stop()
        spawner.close()
        remove_runtime_dir(config)
        shutil.rmtree(state)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=240, help="sandboxes at once")
    parser.add_argument("--parked", type=int, default=500, help="sandboxes parked for the memory figure")
    parser.add_argument("--rounds", type=int, default=200, help="of what is measured one by one")
    return parser.parse_args()


if __name__ == "__main__":
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(main(parse()))
