"""The parked pool of a real node."""

import asyncio
import os
import signal
from dataclasses import replace

from kernpool_mesh.messages import Command, Limits, PoolTarget, Template
from kernpool_sandbox.config import RuntimeConfig
from kernpool_sandbox.pool import PoolPolicy
from tests.sandbox.conftest import Node, checked_node, until


async def parked(node: Node, count: int) -> None:
    await until(lambda: node.runtime.statistics().parked == count, 20, f"{count} parked")


async def test_a_parked_sandbox_is_handed_out_and_replaced(node: Node) -> None:
    """An operator parks five for the evening."""
    node.runtime.set_pools([PoolTarget(Template(), 5, drain_after_s=0)])
    await parked(node, 5)
    status = await node.runtime.create("sb-1", Template(), ttl_s=60, env={"A": "1"})
    assert status.parked
    assert (await node.sh("sb-1", "echo $A")).stdout == b"1\n"
    await parked(node, 5)
    status = await node.runtime.create("sb-2", Template(limits=Limits(pids=77)), ttl_s=60)
    assert not status.parked, "another template has another pool"
    node.runtime.set_pools([])
    await parked(node, 0)
    assert node.runtime.statistics().running == 2


async def test_after_a_burst_the_next_one_is_claimed_and_an_idle_pool_is_drained(config: RuntimeConfig) -> None:
    """Automatic: nobody set a target."""
    policy = PoolPolicy(auto_max=8, auto_min=1, auto_drain_after_s=0.7)
    async with checked_node(replace(config, pool=policy)) as node:
        first = await asyncio.gather(*(node.runtime.create(f"a{n}", Template(), ttl_s=60) for n in range(6)))
        assert not any(status.parked for status in first)
        await node.runtime.remove([f"a{n}" for n in range(6)])
        await parked(node, 6)
        second = await asyncio.gather(*(node.runtime.create(f"b{n}", Template(), ttl_s=60) for n in range(6)))
        assert all(status.parked for status in second)
        await node.runtime.remove([f"b{n}" for n in range(6)])
        await parked(node, 0)


async def test_a_parked_one_that_died_is_not_handed_out(node: Node) -> None:
    """The host's OOM killer takes parked PID 1s."""
    node.runtime.set_pools([PoolTarget(Template(), 3, drain_after_s=0)])
    await parked(node, 3)
    for name in list(node.runtime._parking._pools.slots()):
        os.kill(node.runtime._maker.slots[name].client.hello.pid, signal.SIGKILL)
    results = []
    for number in range(3):
        await node.runtime.create(f"sb-{number}", Template(), ttl_s=60)
        results.append(await node.runtime.run(f"sb-{number}", Command(["true"])))
    assert [result.exit_code for result in results] == [0, 0, 0]


async def test_a_pool_whose_image_is_gone_does_not_spin(node: Node) -> None:
    """The operator named a path that is not there: said once, everything else goes on."""
    node.runtime.set_pools([PoolTarget(Template(image="/no/such/image.tar"), 3), PoolTarget(Template(), 2, 0)])
    await parked(node, 2)


async def test_a_hundred_parked_sandboxes_are_small(node: Node) -> None:
    """At most 1 MB each, and two descriptors."""
    if node.runtime.isolation.cgroup == "none":
        return
    from tests.sandbox.conftest import open_files

    await node.sandbox()
    before = open_files()
    node.runtime.set_pools([PoolTarget(Template(), 100, drain_after_s=0)])
    await parked(node, 100)
    assert open_files() - before <= 201
    cgroups = node.runtime._parts.cgroups
    used = [
        cgroups.usage(node.runtime._maker.slots[name].lease.name).memory_bytes
        for name in node.runtime._parking._pools.slots()
    ]
    assert max(used) < 1 << 20
