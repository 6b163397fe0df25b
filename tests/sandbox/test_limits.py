"""Limits of real sandboxes, and what is told when one is reached."""

import asyncio

import pytest

from kernpool_mesh.messages import Limits, Template
from kernpool_mesh.reasons import EndReason
from tests.sandbox.conftest import Node

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def cgroups(shared: Node) -> None:
    if shared.runtime.isolation.limits != "cgroup":
        pytest.skip("no cgroups here: " + " ".join(shared.runtime.isolation.problems))


@pytest.mark.usefixtures("cgroups")
async def test_a_memory_bomb_is_killed_and_told_as_oom_and_the_sandbox_lives(shared: Node) -> None:
    """A test allocates 10 GB with a limit of 32 MiB."""
    box = await shared.sandbox(Template(limits=Limits(memory_mib=32, disk_mib=16)))
    result = await shared.sh(box, "exec tail /dev/zero")
    assert (result.reason, result.exit_code) == (EndReason.OOM, 137)
    assert "memory limit" in result.detail
    assert (await shared.sh(box, "echo alive")).stdout == b"alive\n"
    result = await shared.sh(box, "kill -9 $$")
    assert result.reason is EndReason.KILLED, "an earlier oom must not explain a later kill"


@pytest.mark.usefixtures("cgroups")
async def test_a_child_killed_by_oom_is_told_beside_its_parents_exit(shared: Node) -> None:
    """pytest reports a failed test; that the machine killed it stands in the detail."""
    box = await shared.sandbox(Template(limits=Limits(memory_mib=32, disk_mib=16)))
    result = await shared.sh(box, "tail /dev/zero; exit 1")
    assert (result.reason, result.exit_code) == (EndReason.EXITED, 1)
    assert "memory limit was reached" in result.detail


@pytest.mark.usefixtures("cgroups")
async def test_a_memory_bomb_in_one_sandbox_does_not_touch_another(shared: Node) -> None:
    """Eight at once."""
    boxes = [await shared.sandbox(Template(limits=Limits(memory_mib=24, disk_mib=16))) for _ in range(8)]
    results = await asyncio.gather(*(shared.sh(box, "exec tail /dev/zero") for box in boxes[1:]))
    assert {result.reason for result in results} == {EndReason.OOM}
    assert (await shared.sh(boxes[0], "echo alive")).stdout == b"alive\n"


async def test_a_full_disk_is_told_as_such_and_the_limit_holds(shared: Node) -> None:
    """A build fills /tmp with a limit of 8 MiB; nothing of it reaches the node's own disk."""
    box = await shared.sandbox(Template(limits=Limits(disk_mib=8, memory_mib=64)))
    result = await shared.sh(box, "head -c 100000000 /dev/zero > /tmp/full")
    assert result.reason is EndReason.DISK_FULL
    assert b"No space left on device" in result.stderr
    result = await shared.sh(box, "stat -c %s /tmp/full")
    assert 4 << 20 <= int(result.stdout) <= 8 << 20
    result = await shared.sh(box, "rm /tmp/full; echo room > /tmp/f; exit 1")
    assert result.reason is EndReason.EXITED


async def test_a_hundred_thousand_files_are_bounded_by_the_disk_limit(shared: Node) -> None:
    """Many empty files cost memory too: a tmpfs bounds their number by its size."""
    box = await shared.sandbox(Template(limits=Limits(disk_mib=16, memory_mib=128)))
    script = "cd /tmp && seq 1 100000 | xargs touch; echo $?; ls | wc -l"
    result = await shared.sh(box, script, timeout_s=50)
    code, count = result.stdout.split()
    assert int(count) <= 100_000
    assert code == b"0" or int(count) < 100_000
    assert (await shared.sh(box, "rm -rf /tmp/*; echo cleared > /tmp/f; cat /tmp/f")).stdout == b"cleared\n"


async def test_a_fork_bomb_meets_its_limit_and_ends_with_its_sandbox(shared: Node) -> None:
    """`:(){ :|:& };:`"""
    box = await shared.sandbox(Template(limits=Limits(pids=40)))
    result = await shared.sh(box, "i=0; while [ $i -lt 200 ]; do sleep 100 & i=$((i+1)); done; wait", timeout_s=5)
    assert b"ork" in result.stderr
    other = await shared.sandbox()
    assert (await shared.sh(other, "echo alive")).stdout == b"alive\n"
    bomb = asyncio.create_task(shared.sh(box, "bomb() { bomb | bomb & }; bomb; sleep 100"))
    for _ in range(30):
        assert (await shared.sh(other, "echo alive")).stdout == b"alive\n"
    await shared.runtime.remove([box])
    assert (await bomb).exit_code != 0


@pytest.mark.usefixtures("cgroups")
async def test_a_cpu_limit_slows_a_busy_loop(shared: Node) -> None:
    """A tenth of a CPU."""
    box = await shared.sandbox(Template(limits=Limits(cpu_millis=100)))
    script = "awk 'BEGIN { while (1) n++ }' & sleep 0.6; kill $!; read a b < /proc/$!/stat 2>/dev/null; times"
    result = await shared.sh(box, script)
    usage = shared.runtime._parts.cgroups
    assert result.exit_code == 0
    slot = shared.runtime._maker.slots[shared.runtime._table.get(box).slot]
    paths = [path for path in slot.lease.paths if "cpu" in path or "unified" in path]
    if shared.runtime.isolation.cgroup == "v1":
        from pathlib import Path

        stat = dict(line.split() for line in Path(paths[0], "cpu.stat").read_text().splitlines())
        assert int(stat["nr_throttled"]) > 0
    else:
        assert usage.usage(slot.lease.name).cpu_ms < 400


async def test_open_files_have_a_bound(shared: Node) -> None:
    """A descriptor leak inside stays inside."""
    box = await shared.sandbox()
    assert int((await shared.sh(box, "ulimit -n")).stdout) <= 65536
    assert (await shared.sh(box, "ulimit -c")).stdout == b"0\n"
