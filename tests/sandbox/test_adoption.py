"""An agent that dies and comes back: everything that lives is adopted, everything else is swept."""

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kernpool_mesh.messages import Command, SandboxState, Template
from kernpool_mesh.reasons import EndReason
from kernpool_sandbox.config import RuntimeConfig
from kernpool_sandbox.journal import Journal
from tests.sandbox.conftest import PREFIXES, Node, Traces, find, open_node, until

EARLIER_AGENT = """
import asyncio, sys
from pathlib import Path
from kernpool_mesh.messages import Command, PoolTarget, Template
from kernpool_sandbox.config import RuntimeConfig
from kernpool_sandbox.pool import PoolPolicy
from kernpool_sandbox.runtime import SandboxRuntime

state, images, count, ttl_s, script, parked = sys.argv[1:]

POLL_S = 0.01


async def main():
    config = RuntimeConfig(Path(state), images_dir=Path(images), pool=PoolPolicy(auto_max=0, auto_min=0))
    runtime = await SandboxRuntime.open(config, on_update=lambda _: None)
    print("prefix", runtime._maker._names._prefix, flush=True)
    if int(parked):
        runtime.set_pools([PoolTarget(Template(), int(parked), 0)])
        while runtime.statistics().parked < int(parked):
            await asyncio.sleep(POLL_S)
    print("creating", flush=True)

    async def one(number):
        name = f"sb-{number}"
        await runtime.create(name, Template(), ttl_s=float(ttl_s), labels={"n": str(number)}, owner="ada")
        print("made", name, flush=True)
        process = await runtime.exec(name, Command(["/bin/sh", "-c", script]), stdin=False)
        await process.stdout.read()
        print("up", name, flush=True)
        await process.wait()

    await asyncio.gather(*(one(number) for number in range(int(count))), return_exceptions=True)

asyncio.run(main())
"""


class EarlierAgent:
    """An agent in a process of its own, to be killed."""

    def __init__(
        self, config: RuntimeConfig, count: int, *, ttl_s: float = 60, script: str = "sleep 1000", parked: int = 0
    ) -> None:
        arguments = (config.state_dir, config.images, count, ttl_s, script, parked)
        self.process = subprocess.Popen(
            [sys.executable, "-c", EARLIER_AGENT, *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert self.process.stdout is not None
        self.lines = self.process.stdout
        self.made: set[str] = set()
        self.up = 0
        """How many commands wrote their first line."""
        PREFIXES.append(self.next_line("prefix"))

    def next_line(self, wanted: str) -> str:
        for line in self.lines:
            word, *rest = line.split()
            if word == "made":
                self.made.add(rest[0])
            self.up += word == "up"
            if word == wanted:
                return " ".join(rest)
        raise AssertionError(f"the earlier agent ended before it said {wanted!r}")

    def wait_made(self, count: int) -> None:
        while len(self.made) < count:
            self.next_line("made")

    def wait_up(self, count: int) -> None:
        while self.up < count:
            self.next_line("up")

    def kill(self) -> None:
        self.process.kill()
        for line in self.lines:
            word, *rest = line.split()
            if word == "made":
                self.made.add(rest[0])
        self.process.wait()
        self.lines.close()


@pytest.fixture
async def traces(config: RuntimeConfig) -> Traces:
    node = await open_node(config)
    works = node.runtime.isolation.works
    if works:
        await node.runtime.create("sb-warm-up", Template(), ttl_s=60)  # so that the image is ready
    await node.runtime.shutdown()
    if not works:
        pytest.skip("no sandboxes here: " + " ".join(node.runtime.isolation.problems))
    (config.state_dir / "journal").unlink()
    return Traces.of(config.state_dir)


async def finish(node: Node, traces: Traces) -> None:
    await node.runtime.shutdown()
    await traces.expect_none()


def running(node: Node) -> set[str]:
    return {one.sandbox_id for one in node.runtime.sandboxes() if one.state is SandboxState.RUNNING}


@pytest.mark.parametrize("made_before", [0, 1, 60, 170, 239])
async def test_kill_9_amid_240_creates_leaves_nothing_that_is_not_served(
    config: RuntimeConfig, traces: Traces, made_before: int
) -> None:
    """The machine's OOM killer takes the agent in the midst of a burst."""
    agent = EarlierAgent(config, 240)
    agent.next_line("creating")
    agent.wait_made(made_before)
    agent.kill()
    node = await open_node(config)
    alive = running(node)
    assert agent.made <= alive, "one that the caller was told of is gone"
    ended = {one.sandbox_id: one for one in node.runtime.sandboxes() if one.state is SandboxState.ENDED}
    assert {one.reason for one in ended.values()} <= {EndReason.LOST}
    assert len(node.runtime._maker.slots) == len(alive)
    assert node.runtime._parts.cgroups.in_use in (0, len(alive))
    assert node.runtime._parts.cgroups.tree.existing() in (
        set(),
        {slot.lease.name for slot in node.runtime._maker.slots.values()},
    )
    some = sorted(alive)[:5]
    results = await asyncio.gather(*(node.sh(one, "echo alive") for one in some))
    assert all(result.stdout == b"alive\n" for result in results)
    await node.runtime.create("sb-new", Template(), ttl_s=60)
    await finish(node, traces)


async def test_sandboxes_go_on_while_no_agent_is_there(config: RuntimeConfig, traces: Traces) -> None:
    """Fifty run, the agent is killed and comes back: all are there with labels, owner, files and processes."""
    agent = EarlierAgent(config, 50, script="echo kept > /tmp/f; echo up; sleep 1000", parked=5)
    agent.wait_up(50)
    agent.kill()
    node = await open_node(config)
    assert running(node) == {f"sb-{number}" for number in range(50)}
    status = node.runtime.get("sb-7")
    assert (status.labels, status.owner) == ({"n": "7"}, "ada")
    assert status.expires_unix_s == pytest.approx(status.started_unix_s + 60)
    wait = f"until ({find('sleep 1000')}) >/dev/null; do :; done; cat /tmp/f"
    results = await asyncio.gather(*(node.sh(f"sb-{n}", wait, timeout_s=30) for n in range(50)))
    assert {result.stdout for result in results} == {b"kept\n"}
    assert node.runtime.statistics().parked == 0
    await node.runtime.extend("sb-7", 0.2)
    assert (await node.ended("sb-7"))[0] is EndReason.TTL
    await finish(node, traces)


async def test_the_death_of_agent_and_spawner_together_is_survived(config: RuntimeConfig, traces: Traces) -> None:
    """kill -9 of everything of ours but the sandboxes."""
    agent = EarlierAgent(config, 10)
    agent.wait_made(10)
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(config.state_dir).encode() in line and b"spawner" in line:
            os.kill(int(entry.name), signal.SIGKILL)
    agent.kill()
    node = await open_node(config)
    assert len(running(node)) == 10
    assert (await node.sh("sb-3", "echo alive")).stdout == b"alive\n"
    await node.runtime.create("sb-new", Template(), ttl_s=60)
    await node.runtime.remove([f"sb-{n}" for n in range(10)])
    assert running(node) == {"sb-new"}
    await finish(node, traces)


async def test_a_spawner_that_dies_under_the_agent_is_started_again(node: Node) -> None:
    """Only the spawner is killed; nobody notices but the log."""
    sandbox = await node.sandbox()
    children = Path(f"/proc/{os.getpid()}/cgroup")
    assert children.exists()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(node.runtime._config.state_dir).encode() in line and b"spawner" in line:
            os.kill(int(entry.name), signal.SIGKILL)
    await until(lambda: node.runtime._parts.spawning._client is None, 10, "loss of the spawner")
    other = await node.sandbox()
    assert (await node.sh(sandbox, "echo alive")).stdout == b"alive\n"
    assert (await node.sh(other, "echo alive")).stdout == b"alive\n"


async def test_ends_that_happened_meanwhile_are_told_with_their_reasons(config: RuntimeConfig, traces: Traces) -> None:
    """One's deadline passed, another's PID 1 was killed."""
    agent = EarlierAgent(config, 2, ttl_s=1.0)
    agent.wait_made(2)
    pid = next(
        int(entry.name)
        for entry in Path("/proc").glob("[0-9]*")
        if _cmdline(entry).startswith(f"kp-init {PREFIXES[-1]}.1-")
    )
    agent.kill()
    os.kill(pid, signal.SIGKILL)
    await until(
        lambda: not any(_cmdline(one).startswith(f"kp-init {PREFIXES[-1]}.") for one in processes()), 10, "ends"
    )
    node = await open_node(config)
    reasons = {one.sandbox_id: one.reason for one in node.runtime.sandboxes()}
    assert sorted(map(str, reasons.values())) == [EndReason.KILLED, EndReason.TTL]
    await finish(node, traces)
    node = await open_node(config)
    assert {one.sandbox_id: one.reason for one in node.runtime.sandboxes()} == reasons, (
        "told after another restart, too"
    )
    await finish(node, traces)


def processes() -> list[Path]:
    return list(Path("/proc").glob("[0-9]*"))


def _cmdline(entry: Path) -> str:
    try:
        return (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


async def test_a_lost_journal_kills_nobody(config: RuntimeConfig, traces: Traces) -> None:
    """The disk with the journal died; what runs is adopted under a name that says so, and its deadline holds."""
    agent = EarlierAgent(config, 3, ttl_s=5)
    agent.wait_made(3)
    agent.kill()
    (config.state_dir / "journal").unlink()
    node = await open_node(config)
    recovered = running(node)
    assert len(recovered) == 3
    assert all(node.runtime.get(one).labels == {"kernpool/recovered": "true"} for one in recovered)
    assert (await node.sh(min(recovered), "echo alive")).stdout == b"alive\n"
    await until(lambda: not running(node), 15, "end by the deadline")
    assert {node.runtime.get(one).reason for one in recovered} == {EndReason.TTL}
    await finish(node, traces)


async def test_after_a_restart_of_the_node_all_are_told_as_lost(config: RuntimeConfig, traces: Traces) -> None:
    """Power failure: the journal is of another boot, and nothing else is left."""
    agent = EarlierAgent(config, 3)
    agent.wait_made(3)
    agent.kill()
    for entry in Path("/proc").glob("[0-9]*"):
        if str(config.state_dir) in _cmdline(entry) or _cmdline(entry).startswith(f"kp-init {PREFIXES[-1]}."):
            os.kill(int(entry.name), signal.SIGKILL)
    for path in (config.state_dir / "s").iterdir():
        path.unlink()
    journal = Journal(config.state_dir / "journal", "x")
    journal.begin_boot("an-earlier-boot")
    journal.close()
    node = await open_node(config)
    told = {one.sandbox_id: (one.reason, one.detail) for one in node.runtime.sandboxes()}
    assert told == dict.fromkeys(("sb-0", "sb-1", "sb-2"), (EndReason.LOST, "the node was restarted"))
    await finish(node, traces)


async def test_close_lets_everything_go_on_and_open_takes_it_up_again(config: RuntimeConfig, traces: Traces) -> None:
    """An upgrade of the agent: parked ones end, claimed ones do not, commands neither."""
    node = await open_node(config)
    sandbox = await node.sandbox()
    process = await node.runtime.exec(
        sandbox, Command(["sh", "-c", "yes | head -c 3000000; echo done > /tmp/f; sleep 1000"]), stdin=False
    )
    assert await process.stdout.read()
    process.close()
    await node.runtime.close()
    again = await open_node(replace(config))
    assert running(again) == {sandbox}
    for _ in range(1000):
        if (await again.sh(sandbox, "cat /tmp/f")).stdout == b"done\n":
            break
    else:
        raise AssertionError("the earlier agent's command is blocked by its output")
    assert (await again.sh(sandbox, f"until kill $({find('sleep 1000')}); do :; done", timeout_s=20)).exit_code == 0
    await finish(again, traces)
