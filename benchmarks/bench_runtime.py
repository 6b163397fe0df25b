"""What a sandbox costs on one node, through kernpool_sandbox.runtime alone: python benchmarks/bench_runtime.py

Prints create + run `true` + its result, parked and cold, one at a time and 240 at once, removal, memory and descriptors
of idle sandboxes; beside bubblewrap, crun and runc doing the same step (fresh namespaces, `true`, clear away) in the
same run. Needs no coordinator and no agent; as an ordinary user it measures the rootless mode.
"""

import asyncio
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop
from bench_peers import BURST, UNIFIED, peers, run

from kernpool_mesh.messages import Command, PoolTarget, Template
from kernpool_sandbox.config import RuntimeConfig
from kernpool_sandbox.pool import PoolPolicy
from kernpool_sandbox.runtime import SandboxRuntime

SERIAL = 200
PEER_ROUNDS = 50
IDLE = 2000
POLL_S = 0.01
QUIET_S = 0.5
TRUE = Command(["true"])
TEMPLATE = Template()
AUTOMATIC = PoolPolicy()
NONE = PoolPolicy(auto_max=0, auto_min=0)


def main() -> int:
    """Measure and print."""
    if "--inside" not in sys.argv and os.geteuid() == 0:
        # crun refuses a hybrid cgroup layout: hide the unified mount, in a mount namespace of our own.
        command = f'[ ! -d {UNIFIED} ] || umount {UNIFIED}; exec "$0" "$@"'
        return subprocess.call(["unshare", "-m", "sh", "-c", command, sys.executable, *sys.argv, "--inside"])
    scratch = Path(tempfile.mkdtemp(prefix="kpb-", dir="/tmp"))
    try:
        uvloop.run(measure(scratch))
        compare(scratch)
        uvloop.run(measure_idle(scratch))  # last: so many at once make the kernel's later cgroups dearer
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    uname = platform.uname()
    print(f"{os.cpu_count()} cores, Linux {uname.release}, Python {platform.python_version()}, {time.strftime('%F')}")
    return 0


class Bench:
    """One runtime and the steps that are timed on it."""

    def __init__(self, runtime: SandboxRuntime) -> None:
        self.runtime = runtime
        self.count = 0

    async def step(self, *, remove: bool = False) -> float:
        """Create, run `true`, have its result; seconds, the removal not counted."""
        self.count += 1
        name = f"sb-{self.count}"
        began = time.perf_counter()
        await self.runtime.create(name, TEMPLATE, ttl_s=600)
        result = await self.runtime.run(name, TRUE)
        took = time.perf_counter() - began
        assert result.exit_code == 0, result
        if remove:
            await self.runtime.remove([name])
        return took

    async def park(self, count: int) -> None:
        """Have exactly so many parked, and a quiet moment after."""
        self.runtime.set_pools([PoolTarget(TEMPLATE, count, 0)] if count else [])
        while self.runtime.statistics().parked != count:  # noqa: ASYNC110 - from outside there is no event
            await asyncio.sleep(POLL_S)
        await asyncio.sleep(QUIET_S)

    async def clear(self) -> float:
        """Remove every sandbox; seconds."""
        began = time.perf_counter()
        await self.runtime.remove([one.sandbox_id for one in self.runtime.sandboxes()])
        return time.perf_counter() - began


async def measure(scratch: Path) -> None:
    """All of ours."""
    images = scratch / "images"
    async with opened(scratch / "a", images, NONE) as bench:
        await bench.step(remove=True)  # the first one prepares the image
        await bench.park(SERIAL + 10)
        print_serial("create + run + result, parked", [await bench.step() for _ in range(SERIAL)])
        await bench.park(0)
        await bench.clear()
        print_serial("create + run + result, cold", [await bench.step() for _ in range(SERIAL)])
        await bench.clear()
        await bursts(bench)
    async with opened(scratch / "b", images, AUTOMATIC) as bench:
        await bench.step(remove=True)
        await asyncio.sleep(1)
        steps = [await bench.step(remove=True) for _ in range(SERIAL)]
        print_serial("the same with the automatic pool, removed each time", steps)


async def measure_idle(scratch: Path) -> None:
    """How many fit."""
    async with opened(scratch / "c", scratch / "images", NONE) as bench:
        await bench.step(remove=True)
        await idle(bench)


class opened:  # noqa: N801 - used like a function
    """A runtime in a state directory of its own, ended at the end."""

    def __init__(self, state_dir: Path, images: Path, policy: PoolPolicy) -> None:
        self.config = RuntimeConfig(state_dir, images_dir=images, pool=policy)

    async def __aenter__(self) -> Bench:
        self.runtime = await SandboxRuntime.open(self.config, on_update=lambda _: None)
        self.runtime.isolation.require()
        return Bench(self.runtime)

    async def __aexit__(self, *_error: object) -> None:
        await self.runtime.shutdown()


async def bursts(bench: Bench) -> None:
    """240 at once, three times each."""
    for name, parked in (("parked", BURST), ("cold", 0)):
        walls, removals = [], []
        for _ in range(3):
            await bench.park(parked)
            walls.append(await timed(lambda: asyncio.gather(*(bench.step() for _ in range(BURST)))))
            await bench.park(0)
            removals.append(await bench.clear())
        wall, removal = sorted(walls)[1], sorted(removals)[1]
        print(f"{f'{BURST} at once, {name}':52} median of 3 {wall:.3f} s, removed in {removal:.3f} s")


async def idle(bench: Bench) -> None:
    """What parked sandboxes hold, and how many fit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    count = min(IDLE, (hard - 200) // 2)
    before_kib, before_fds, before_own_kib = free_kib(), open_files(), own_kib()
    began = time.perf_counter()
    await bench.park(count)
    took = time.perf_counter() - began - QUIET_S
    per_kib, per_fds = (before_kib - free_kib()) / count, (open_files() - before_fds) / count
    charged_bytes = bench.runtime.parked_memory_bytes()
    charged = f"{charged_bytes / count / 1024:.0f} KiB in its cgroup" if charged_bytes >= 0 else "no cgroup's"
    own = (own_kib() - before_own_kib) / count
    print(f"{f'{count} parked':52} {took:.2f} s; each {per_kib:.0f} KiB of the machine's free memory, of which")
    print(f"{'':52} {charged} and {own:.0f} KiB in this process; {per_fds:.1f} descriptors")
    print(f"{'all of them ended':52} {await timed(lambda: bench.park(0)) - QUIET_S:.2f} s")


def compare(scratch: Path) -> None:
    """The same step by others, in the same minute."""
    for name, command in peers(scratch).items():
        run([command])
        singles = []
        for _ in range(PEER_ROUNDS):
            began = time.perf_counter()
            run([command])
            singles.append(time.perf_counter() - began)
        began = time.perf_counter()
        run([command] * BURST)
        burst = time.perf_counter() - began
        print_serial(f"{name}, the same step", singles)
        print(f"{f'{BURST} at once, {name}':52} {burst:.3f} s")


def print_serial(name: str, seconds: list[float]) -> None:
    """One line with p50 and p99."""
    ordered = sorted(seconds)
    p50, p99 = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    print(f"{name:52} p50 {p50 * 1e3:6.2f} ms   p99 {p99 * 1e3:6.2f} ms", flush=True)


async def timed(action: Callable[[], Awaitable[object]]) -> float:
    """Seconds of one action."""
    began = time.perf_counter()
    await action()
    return time.perf_counter() - began


def free_kib() -> int:
    """The machine's free memory."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemFree:"))


def own_kib() -> int:
    """This process's resident memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def open_files() -> int:
    """This process's descriptors."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


if __name__ == "__main__":
    sys.exit(main())
