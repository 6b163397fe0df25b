"""What the agent costs by itself: memory of agent and spawner, starts, bulk creates over a real link, the journal.

    python benchmarks/bench_agent.py

The coordinator is the small one of the agent's tests (real mTLS and link, no control plane), in this very process: its
share of the two cores is in the figures.
"""

import asyncio
import importlib.util
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
ROOMS = [str(ROOT / room) for room in ("agent", "client", "coordinator", "mesh", "sandbox", "tls")]
sys.path[:0] = ROOMS
os.environ["PYTHONPATH"] = os.pathsep.join(ROOMS)

from kernpool_agent.journal import Journal  # noqa: E402
from kernpool_mesh import messages as m  # noqa: E402

SINGLES = 200
AT_ONCE = 240
SETTLE_S = 3.0
"""Between rounds: removals and the refilling of the pool are not what is measured."""


def standin() -> ModuleType:
    """The coordinator of the agent's tests."""
    spec = importlib.util.spec_from_file_location("agent_conftest", ROOT / "tests" / "agent" / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["agent_conftest"] = module
    spec.loader.exec_module(module)
    return module


def pss_kib(pid: int) -> int:
    """Proportional memory of one process."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))


def spawner_pid(state_dir: Path) -> int:
    """The oldest kp-init of this state directory."""
    found = [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdecimal() and str(state_dir).encode() in _cmdline(entry) and b"spawner" in _cmdline(entry)
    ]
    return min(found)


def _cmdline(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""


class Bench:
    """One agent and one coordinator."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.coordinator: Any = standin().make_standin(directory / "coordinator")
        self.coordinator.heartbeat_interval_s = 2.0
        self.done: dict[int, asyncio.Future[None]] = {}
        self.first: dict[str, float] = {}
        take = self.coordinator._take

        async def counting(link: Any, node_id: str, message: m.Message) -> None:
            if not isinstance(message, m.SandboxItems):
                await take(link, node_id, message)
                return
            for item in message.items:
                if item.result is not None or item.error:
                    self.first[item.sandbox_id] = time.perf_counter()
            if message.done:
                self.done.pop(message.request_id).set_result(None)

        self.coordinator._take = counting

    async def start(self) -> tuple[asyncio.subprocess.Process, float]:
        """Start the agent; returns it and the seconds to its first link (with enrolment and the first look around)."""
        await self.coordinator.serve()
        token = self.directory / "token"
        token.write_text(self.coordinator.join_token())
        begun = time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "kernpool_agent", f"--state-dir={self.directory}/a", "--log-level=error",
            f"--coordinator={self.coordinator.url}", f"--join-token-file={token}",
        )  # fmt: skip
        await self.coordinator.linked()
        return process, time.perf_counter() - begun

    async def create(self, count: int) -> list[float]:
        """Make sandboxes that run /bin/true and are removed; returns the seconds to each result."""
        request_id = self.coordinator.next_id()
        ids = [f"sb-{request_id:06d}{number:010d}" for number in range(count)]
        done = self.done[request_id] = asyncio.get_running_loop().create_future()
        begun = time.perf_counter()
        self.coordinator.link.send_nowait(
            m.CreateSandboxes(request_id, ids, m.Template(), 600, command=m.Command(["/bin/true"]), remove_after=True)
        )
        await done
        return sorted(self.first.pop(sandbox_id) - begun for sandbox_id in ids)


async def journal_rates(directory: Path) -> list[str]:
    """Records a second, one after the other and 200 at once."""
    journal, _ = Journal.open(directory / "journal", list)
    payload = b"x" * 60
    begun = time.perf_counter()
    for _ in range(200):
        await journal.append(payload)
    one_ms = 1000 * (time.perf_counter() - begun) / 200
    begun = time.perf_counter()
    await asyncio.gather(*[journal.append(payload) for _ in range(200)])
    many_ms = 1000 * (time.perf_counter() - begun)
    await journal.close()
    return [f"journal, fsynced: one at a time {one_ms:.2f} ms each; 200 at once {many_ms:.1f} ms in all"]


async def measure(directory: Path) -> list[str]:
    """All figures, as lines."""
    lines = await journal_rates(directory)
    bench = Bench(directory)
    process, start_s = await bench.start()
    await asyncio.sleep(SETTLE_S)
    spawner = spawner_pid(directory / "a")
    idle = pss_kib(process.pid), pss_kib(spawner)
    lines.append(f"start to first link, with enrolment: {start_s:.2f} s")
    lines.append(f"memory idle (PSS): agent {idle[0] / 1024:.1f} MiB + spawner {idle[1] / 1024:.1f} MiB")
    if not bench.coordinator.all(m.Inventory)[-1].isolation:
        lines.append("no sandboxes on this machine")
    else:
        await bench.create(1)  # the template is planned, the pool fills
        await asyncio.sleep(SETTLE_S)
        singles = sorted([(await bench.create(1))[0] * 1000 for _ in range(SINGLES)])
        lines.append(
            f"create + true + result, one at a time: p50 {statistics.median(singles):.2f} ms, "
            f"p99 {singles[int(SINGLES * 0.99)]:.2f} ms"
        )
        for name in ("few parked", "some parked", "parked"):
            await asyncio.sleep(SETTLE_S)
            times = [1000 * t for t in await bench.create(AT_ONCE)]
            lines.append(f"{AT_ONCE} at once, {name}: p50 {statistics.median(times):.0f} ms, all {times[-1]:.0f} ms")
        lines.append(f"memory afterwards (PSS): agent {pss_kib(process.pid) / 1024:.1f} MiB")
    stop = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kernpool_agent", "stop", f"--state-dir={directory}/a", "--all-work", "--log-level=error"
    )
    await stop.wait()
    await process.wait()
    await bench.coordinator.die()
    return lines


def main() -> None:
    """Measure and print."""
    directory = Path(tempfile.mkdtemp(prefix="kp-bench-"))
    try:
        lines = asyncio.run(measure(directory))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(f"agent on {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}")
    for line in lines:
        print(f"  {line}")


if __name__ == "__main__":
    main()
