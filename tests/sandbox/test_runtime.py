"""The life of real sandboxes: created, used, extended, ended, for every reason there is."""

import asyncio
import os
import resource
import signal
from pathlib import Path

import pytest

from kernpool_mesh.messages import Command, Limits, SandboxState, Template
from kernpool_mesh.reasons import EndReason
from kernpool_sandbox.config import RuntimeConfig
from kernpool_sandbox.errors import (
    JournalFullError,
    NoCapacityError,
    SandboxEndedError,
    SandboxNotFoundError,
    StartError,
    StateBusyError,
    TemplateError,
)
from kernpool_sandbox.runtime import SandboxRuntime
from tests.sandbox.conftest import NO_POOL, Node, Traces, open_node, until


async def test_a_sandbox_runs_a_command_and_is_removed(node: Node) -> None:
    """The first thing a newcomer does."""
    status = await node.runtime.create("sb-1", Template(), ttl_s=60, labels={"team": "rl"}, owner="ada")
    assert (status.state, status.parked, status.labels, status.owner) == (
        SandboxState.RUNNING,
        False,
        {"team": "rl"},
        "ada",
    )
    assert status.expires_unix_s == pytest.approx(status.started_unix_s + 60)
    result = await node.runtime.run("sb-1", Command(["echo", "hello"]))
    assert (result.reason, result.exit_code, result.stdout, result.stderr) == (EndReason.EXITED, 0, b"hello\n", b"")
    assert result.first_output_ms > 0
    await node.runtime.remove(["sb-1", "sb-unknown"])
    assert node.runtime.get("sb-1").reason is EndReason.CANCELLED
    with pytest.raises(SandboxEndedError, match="sandbox sb-1 is over: cancelled"):
        await node.runtime.run("sb-1", Command(["true"]))
    with pytest.raises(SandboxNotFoundError):
        await node.runtime.run("sb-2", Command(["true"]))


async def test_a_repeated_create_is_answered_by_the_same_sandbox(node: Node) -> None:
    """The coordinator lost the link before the answer came, and asks again with the same id."""
    first, second = await asyncio.gather(
        node.runtime.create("sb-1", Template(), ttl_s=60), node.runtime.create("sb-1", Template(), ttl_s=60)
    )
    assert first == second
    await node.sh("sb-1", "echo kept > /tmp/f")
    assert await node.runtime.create("sb-1", Template(), ttl_s=60) == first
    assert (await node.sh("sb-1", "cat /tmp/f")).stdout == b"kept\n"
    assert node.runtime.statistics().running == 1
    await node.runtime.remove(["sb-1"])
    with pytest.raises(SandboxEndedError):
        await node.runtime.create("sb-1", Template(), ttl_s=60)


async def test_the_time_to_live_ends_a_sandbox_and_is_told(node: Node) -> None:
    """A trainer forgot to delete it; the running command is told, too."""
    sandbox = await node.sandbox(ttl_s=0.4)
    result = await node.sh(sandbox, "sleep 60")
    assert (result.reason, result.exit_code) == (EndReason.TTL, 137)
    assert await node.ended(sandbox) == (EndReason.TTL, "its time to live passed")
    assert node.runtime.get(sandbox).state is SandboxState.ENDED


async def test_an_extended_sandbox_lives_longer(node: Node) -> None:
    """The task takes longer than was thought."""
    sandbox = await node.sandbox(ttl_s=0.5)
    status = await node.runtime.extend(sandbox, 60)
    assert status.expires_unix_s > status.started_unix_s + 50
    result = await node.sh(sandbox, "sleep 0.8; echo alive")
    assert result.stdout == b"alive\n"
    await node.runtime.extend(sandbox, 0.2)
    assert (await node.ended(sandbox))[0] is EndReason.TTL


async def test_an_unused_sandbox_ends_by_its_idle_time_and_a_used_one_does_not(node: Node) -> None:
    """A forgotten notebook goes; one in use stays."""
    idle = await node.sandbox(idle_s=0.3)
    busy = await node.sandbox(idle_s=0.3)
    command = asyncio.create_task(node.sh(busy, "sleep 1; echo done"))
    assert await node.ended(idle) == (EndReason.IDLE, "not used for 0.3 s")
    assert (await command).stdout == b"done\n"
    assert (await node.ended(busy))[0] is EndReason.IDLE


async def test_the_death_of_pid_1_is_told_as_killed(node: Node) -> None:
    """An administrator kills what he does not know."""
    sandbox = await node.sandbox()
    pid = node.runtime._maker.slots[node.runtime._table.get(sandbox).slot].client.hello.pid
    command = asyncio.create_task(node.sh(sandbox, "echo up > /tmp/up; sleep 60"))
    while (await node.sh(sandbox, "test -e /tmp/up")).exit_code:
        assert not command.done()
    os.kill(pid, signal.SIGKILL)
    assert await node.ended(sandbox) == (EndReason.KILLED, "its PID 1 was killed by signal 9")
    assert (await command).reason is EndReason.KILLED


async def test_a_delete_wins_over_a_create_in_flight(node: Node) -> None:
    """The caller gives up while the sandbox is still being made."""
    await node.sandbox()
    creating = asyncio.create_task(node.runtime.create("sb-x", Template(), ttl_s=60))
    await asyncio.sleep(0)
    assert node.runtime.get("sb-x").state is SandboxState.STARTING
    await node.runtime.remove(["sb-x"])
    with pytest.raises(SandboxEndedError, match="cancelled"):
        await creating
    assert node.runtime.get("sb-x").state is SandboxState.ENDED


async def test_a_cancelled_create_leaves_nothing(node: Node) -> None:
    """The caller's connection breaks at any moment of the making; the fixture looks for leftovers."""
    await node.sandbox()
    for number in range(20):
        creating = asyncio.create_task(node.runtime.create(f"sb-x{number}", Template(), ttl_s=60))
        for _ in range(number // 2):
            await asyncio.sleep(0)
        creating.cancel()
        await asyncio.wait([creating])
    for number in range(20):
        await until(
            lambda number=number: all(  # type: ignore[misc]
                one.state is not SandboxState.STARTING for one in node.runtime.sandboxes()
            ),
            10,
            f"settled create {number}",
        )
    alive = [one.sandbox_id for one in node.runtime.sandboxes() if one.state is SandboxState.RUNNING]
    await node.runtime.remove(alive)
    assert node.runtime.statistics().running == 0


async def test_env_user_and_cwd_come_from_sandbox_template_and_command_in_that_order(node: Node) -> None:
    """What is set closer to the command wins."""
    template = Template(env={"A": "template", "B": "template"}, user="user", cwd="/tmp")
    sandbox = await node.sandbox(template, env={"B": "sandbox", "C": "sandbox"})
    script = "echo $A $B $C $D; whoami; pwd; echo $HOME"
    result = await node.sh(sandbox, script, env={"C": "command", "D": "command"})
    user, home = (b"user", b"/home/user") if node.runtime.isolation.uids == "range" else (b"root", b"/root")
    assert result.stdout.split(b"\n")[:4] == [b"template sandbox command command", user, b"/tmp", home]
    result = await node.sh(sandbox, script, user="root", cwd="/var")
    assert result.stdout.split(b"\n")[1:4] == [b"root", b"/var", b"/root"]


@pytest.mark.parametrize("ttl_s", [0, -1, 31 * 86400])
async def test_a_time_to_live_out_of_bounds_is_refused(node: Node, ttl_s: float) -> None:
    """Everything has a deadline."""
    with pytest.raises(TemplateError, match="time to live"):
        await node.runtime.create("sb-1", Template(), ttl_s=ttl_s)
    assert node.runtime.sandboxes() == []


async def test_a_node_that_is_full_says_so(config: RuntimeConfig) -> None:
    """The owner allows three."""
    from dataclasses import replace

    node = await open_node(replace(config, sandboxes_max=3))
    try:
        node.runtime.isolation.require()
        for _ in range(3):
            await node.sandbox()
        with pytest.raises(NoCapacityError, match="holds its 3 sandboxes"):
            await node.sandbox()
        await node.runtime.remove(["sb-1"])
        await node.sandbox()
    finally:
        await node.runtime.shutdown()


async def test_a_second_runtime_on_the_same_state_is_refused(node: Node, config: RuntimeConfig) -> None:
    """A second `api start`."""
    from dataclasses import replace

    with pytest.raises(StateBusyError, match="another agent holds"):
        await SandboxRuntime.open(replace(config, lock_timeout_s=0.1), on_update=lambda _: None)
    await node.sandbox()


async def test_a_state_directory_with_too_long_a_path_is_refused_with_the_reason(tmp_path: Path) -> None:
    """Sockets have short names; better told at the start than at the first sandbox."""
    with pytest.raises(StartError, match="sockets need at most 70"):
        await SandboxRuntime.open(RuntimeConfig(tmp_path / ("d" * 80), pool=NO_POOL), on_update=lambda _: None)


async def test_a_full_disk_under_the_journal_refuses_creates_and_makes_nothing(node: Node) -> None:
    """Nothing half-made, a clear error, and what lives goes on; with room again all is well."""
    sandbox = await node.sandbox()
    state_dir = node.runtime._config.state_dir
    before = set(Traces.of(state_dir).left())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((state_dir / "journal").stat().st_size, hard))
    try:
        with pytest.raises(JournalFullError, match="is full, so no sandbox can be started"):
            await node.runtime.create("sb-full", Template(), ttl_s=60)
        assert set(Traces.of(state_dir).left()) == before
        assert (await node.sh(sandbox, "echo works")).stdout == b"works\n"
        await node.runtime.remove([sandbox])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await node.sandbox()
    assert node.runtime._journal.state.ended[sandbox].reason is EndReason.CANCELLED


async def test_sandboxes_of_one_node_do_not_see_each_other(node: Node) -> None:
    """Two customers on one machine."""
    one, two = await node.sandbox(), await node.sandbox()
    await node.sh(one, "echo secret > /tmp/secret; sleep 1000 & echo $! > /tmp/pid; hostname changed 2>/dev/null; true")
    result = await node.sh(two, "cat /tmp/secret; ls /proc | grep -c '^[0-9]'; ipcs -m | wc -l; hostname")
    assert b"secret" not in result.stdout
    assert b"No such file" in result.stderr
    count = int(result.stdout.split(b"\n")[0])
    assert count <= 6
    assert b"changed" not in result.stdout


async def test_removing_many_at_once_is_quick_and_leaves_nothing(node: Node) -> None:
    """A trainer ends its 60 rollouts."""
    ids = [f"sb-{number}" for number in range(60)]
    await asyncio.gather(*(node.runtime.create(one, Template(limits=Limits(pids=50)), ttl_s=60) for one in ids))
    assert node.runtime.statistics().running == 60
    await asyncio.gather(*(node.runtime.run(one, Command(["true"])) for one in ids))
    await node.runtime.remove(ids)
    assert node.runtime.statistics().running == 0
    assert node.runtime.statistics().cgroups_in_use == 0
    assert {one.reason for one in node.runtime.sandboxes()} == {EndReason.CANCELLED}
    await until(lambda: len(node.updates) == 60, 5, "60 reports")
