"""After many rounds the machine is as it was before the first."""

import asyncio
import resource
from dataclasses import replace
from pathlib import Path

import pytest

from kernpool_mesh.messages import Command, Limits, Template
from kernpool_sandbox.config import RuntimeConfig
from kernpool_sandbox.pool import PoolPolicy
from tests.sandbox.conftest import NO_POOL, Node, checked_node, mounts, open_files, until

AT_ONCE = 8


def resident_kib() -> int:
    """Return this process's resident memory."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))


def own_namespaces(node: Node) -> int:
    """Count the mount namespaces of living processes below this node's spawner and slots."""
    pids = [slot.client.hello.pid for slot in node.runtime._maker.slots.values()]
    return len({Path(f"/proc/{pid}/ns/mnt").stat().st_ino for pid in pids})


async def rounds(node: Node, count: int) -> None:
    """Make, use and remove sandboxes, some at a time; each writes, forks and leaves a process behind."""
    template = Template(limits=Limits(memory_mib=64, disk_mib=16, pids=50))
    script = "head -c 100000 /dev/zero > /tmp/f; mkdir -p /usr/local/x; sleep 100 & exit 0"

    async def one(number: int) -> None:
        await node.runtime.create(f"sb-{number}", template, ttl_s=60)
        result = await node.runtime.run(f"sb-{number}", Command(["/bin/sh", "-c", script]))
        assert result.exit_code == 0, result
        await node.runtime.remove([f"sb-{number}"])

    for start in range(0, count, AT_ONCE):
        await asyncio.gather(*(one(number) for number in range(start, min(count, start + AT_ONCE))))


async def counted_rounds(config: RuntimeConfig, count: int) -> None:
    async with checked_node(config) as node:
        await rounds(node, 24)
        await until(lambda: node.runtime.statistics().cgroups_in_use == node.runtime.statistics().parked, 10, "rest")
        before = (
            open_files(),
            len(mounts()),
            len(list((config.state_dir / "s").iterdir())),
            len(node.runtime._maker.slots),
        )
        memory_kib = resident_kib()
        for number in list(node.runtime._table._ended):
            del node.runtime._table._ended[number]
        await rounds(node, count)
        await until(
            lambda: (
                before
                >= (
                    open_files(),
                    len(mounts()),
                    len(list((config.state_dir / "s").iterdir())),
                    len(node.runtime._maker.slots),
                )
            ),
            10,
            f"counts as before ({before})",
        )
        assert own_namespaces(node) == len(node.runtime._maker.slots)
        assert node.runtime._parts.cgroups.in_use == len(node.runtime._maker.slots)
        grown_kib = resident_kib() - memory_kib
        assert grown_kib < 4096 + 8 * count, f"{count} rounds left {grown_kib} KiB in this process"
        assert len(node.runtime._parts.spawning._children) == len(node.runtime._maker.slots)
        assert (config.state_dir / "journal").stat().st_size < 4 << 20


@pytest.mark.timeout(240)
async def test_two_hundred_rounds_leave_the_machine_as_it_was(config: RuntimeConfig) -> None:
    """An afternoon of test runs, each sandbox made cold."""
    await counted_rounds(config, 200)


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("policy", [NO_POOL, PoolPolicy()], ids=["cold", "parked"])
async def test_a_thousand_rounds_leave_the_machine_as_it_was(config: RuntimeConfig, policy: PoolPolicy) -> None:
    """A week of them."""
    await counted_rounds(replace(config, pool=policy), 1000)


@pytest.fixture
def many_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 6000:
        pytest.skip(f"2,000 sandboxes need 4,000 open files; this machine allows {hard}")
    memory = Path("/proc/meminfo").read_text().splitlines()
    free_kib = next(int(line.split()[1]) for line in memory if line.startswith("MemAvailable:"))
    if free_kib < 3 << 20:
        pytest.skip("2,000 sandboxes want up to 2 GB of memory, and this machine has not 3 GB to spare")


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("many_files")
async def test_two_thousand_sandboxes_stand_at_once(config: RuntimeConfig) -> None:
    """The size of a large rollout on one node: made, each used, all removed."""
    async with checked_node(config) as node:
        names = [f"sb-{number}" for number in range(2000)]
        await asyncio.gather(*(node.runtime.create(name, Template(), ttl_s=600) for name in names))
        assert node.runtime.statistics().running == 2000
        results = await asyncio.gather(*(node.runtime.run(name, Command(["true"])) for name in names))
        assert {result.exit_code for result in results} == {0}
        await node.runtime.remove(names)
        assert node.runtime.statistics().running == 0
