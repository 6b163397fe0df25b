"""Bulk creates: an answer for every sandbox, in few messages, and nothing made twice."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernpool_agent.capacity import Capacity
from kernpool_agent.ceiling import Ceiling
from kernpool_agent.items import RESULT_BYTES_MAX, ItemCollector, batches, bounded
from kernpool_agent.sandboxes import Sandboxes
from kernpool_agent.uplink import Uplink
from kernpool_mesh import messages as m
from kernpool_mesh.codec import encode
from kernpool_mesh.reasons import EndReason
from kernpool_sandbox.errors import SandboxEndedError, SandboxNotFoundError, StartError

RUN = m.Command(["true"])


class MemoryRuntime:
    """Sandboxes in memory; a command's argv says what it does."""

    def __init__(self) -> None:
        self.all: dict[str, m.SandboxStatus] = {}
        self.creates = 0
        self.runs = 0
        self.at_once = 0
        self.at_once_max = 0
        self.fails: set[str] = set()
        self.gate = asyncio.Event()
        self.gate.set()
        self.on_update: Any = lambda _statuses: None
        self.pools: list[m.PoolTarget] = []

    async def create(self, sandbox_id: str, template: m.Template, **kwargs: Any) -> m.SandboxStatus:
        self.creates += 1
        self.at_once += 1
        self.at_once_max = max(self.at_once, self.at_once_max)
        try:
            await self.gate.wait()
            await asyncio.sleep(0)
        finally:
            self.at_once -= 1
        if sandbox_id in self.fails:
            raise StartError(f"no room for {sandbox_id}")
        self.all[sandbox_id] = m.SandboxStatus(sandbox_id, m.SandboxState.RUNNING, template=template)
        return self.all[sandbox_id]

    async def run(self, sandbox_id: str, command: m.Command) -> m.CommandResult:
        self.runs += 1
        if command.argv[0] == "die":
            raise SandboxEndedError("it is over: oom", EndReason.OOM)
        return m.CommandResult(EndReason.EXITED, 0, stdout=sandbox_id.encode(), first_output_ms=1.0)

    async def remove(self, sandbox_ids: list[str], reason: EndReason) -> None:
        ended = []
        for sandbox_id in sandbox_ids:
            if sandbox_id in self.all:
                self.all[sandbox_id] = m.SandboxStatus(sandbox_id, m.SandboxState.ENDED, reason)
                ended.append(self.all[sandbox_id])
        self.on_update(ended)

    async def extend(self, sandbox_id: str, ttl_s: float) -> m.SandboxStatus:
        if sandbox_id not in self.all:
            raise SandboxNotFoundError(f"there is no sandbox {sandbox_id}")
        return self.all[sandbox_id]

    def get(self, sandbox_id: str) -> m.SandboxStatus:
        if sandbox_id not in self.all:
            raise SandboxNotFoundError(f"there is no sandbox {sandbox_id}")
        return self.all[sandbox_id]

    def sandboxes(self) -> list[m.SandboxStatus]:
        return list(self.all.values())

    def set_pools(self, pools: list[m.PoolTarget]) -> None:
        self.pools = pools


class MemoryLink:
    """Where messages go; wakes who waits for one."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.changed = asyncio.Event()

    def send_nowait(self, message: m.Message) -> None:
        self.sent.append(message)
        self.changed.set()

    async def send(self, message: m.Message) -> None:
        self.send_nowait(message)

    def items(self, request_id: int) -> list[m.SandboxItem]:
        batches = [b for b in self.sent if isinstance(b, m.SandboxItems) and b.request_id == request_id]
        return [item for batch in batches for item in batch.items]

    async def done(self, request_id: int) -> dict[str, m.SandboxItem]:
        """Wait for the last message of a request and return what its items add up to."""
        async with asyncio.timeout(10):
            while not any(isinstance(b, m.SandboxItems) and b.done and b.request_id == request_id for b in self.sent):
                self.changed.clear()
                await self.changed.wait()
        found: dict[str, m.SandboxItem] = {}
        for item in self.items(request_id):
            earlier = found.get(item.sandbox_id, item)
            merged = m.SandboxItem(item.sandbox_id, item.status or earlier.status, item.result, item.error)
            found[item.sandbox_id] = merged
        return found


class Node:
    def __init__(self, ceiling: Ceiling | None = None) -> None:
        self.runtime = MemoryRuntime()
        self.link = MemoryLink()
        uplink = Uplink()
        uplink.attach(self.link)  # type: ignore[arg-type]
        self.capacity = Capacity(m.Resources(4000, 4000, 4000))
        self.sandboxes = Sandboxes(
            runtime=self.runtime,
            capacity=self.capacity,
            uplink=uplink,
            check_template=(ceiling or Ceiling()).check_template,
            creates_at_once=16,
            cpu_millis_default=0,
            memory_mib_default=4,
        )
        self.runtime.on_update = self.sandboxes.on_update


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    node = Node()
    yield node
    await node.sandboxes.close()


def create(request_id: int, *ids: str, **changes: Any) -> m.CreateSandboxes:
    known: dict[str, Any] = {"template": m.Template(), "ttl_s": 60.0} | changes
    return m.CreateSandboxes(request_id, list(ids), **known)


async def test_240_at_once_each_get_their_answer_in_few_messages(node: Node) -> None:
    """The product's promise: a rollout of an RL step."""
    ids = [f"sb-{number:016d}" for number in range(240)]
    node.sandboxes.create(create(1, *ids, command=RUN))
    found = await node.link.done(1)
    assert sorted(found) == ids
    assert all(item.result is not None and item.result.stdout == item.sandbox_id.encode() for item in found.values())
    assert all(item.status is not None for item in found.values())
    assert node.runtime.at_once_max <= 16
    messages = [b for b in node.link.sent if isinstance(b, m.SandboxItems)]
    assert len(messages) <= 60
    assert max(len(encode(message)) for message in messages) <= m.FRAME_BYTES_MAX
    assert node.capacity.free().memory_mib == 4000 - 240 * 4


async def test_a_sandbox_without_a_command_is_told_when_it_is_ready(node: Node) -> None:
    """`kernpool sandbox create` alone."""
    node.sandboxes.create(create(1, "sb-a"))
    found = await node.link.done(1)
    assert found["sb-a"].status is not None
    assert found["sb-a"].result is None
    assert node.link.items(1)[0].ready_ms > 0


async def test_an_empty_request_is_answered(node: Node) -> None:
    """A coordinator that rounds down."""
    node.sandboxes.create(create(1))
    assert await node.link.done(1) == {}


async def test_one_that_fails_does_not_hold_up_the_others(node: Node) -> None:
    """The node runs out of something in the midst of a bulk create."""
    node.runtime.fails = {"sb-b"}
    node.sandboxes.create(create(1, "sb-a", "sb-b", "sb-c"))
    found = await node.link.done(1)
    assert [bool(found[i].error) for i in ("sb-a", "sb-b", "sb-c")] == [False, True, False]
    assert found["sb-b"].error == "no room for sb-b"
    assert node.capacity.free().memory_mib == 4000 - 2 * 4


async def test_what_does_not_fit_is_refused_each_for_itself(node: Node) -> None:
    """Room for two of three."""
    template = m.Template(limits=m.Limits(memory_mib=2000))
    node.sandboxes.create(create(1, "sb-a", "sb-b", "sb-c", template=template))
    errors = [item.error for item in (await node.link.done(1)).values()]
    assert sum(bool(error) for error in errors) == 1
    assert "memory: 2000 MiB wanted, 0 MiB free" in next(filter(None, errors))


async def test_a_repeated_request_makes_and_runs_nothing_twice(node: Node) -> None:
    """The coordinator lost the link and asks again, while the first is under way and after it."""
    node.runtime.gate.clear()
    node.sandboxes.create(create(1, "sb-a", command=RUN))
    node.sandboxes.create(create(2, "sb-a", command=RUN))
    await asyncio.sleep(0)
    node.runtime.gate.set()
    await node.link.done(2)
    node.sandboxes.create(create(3, "sb-a", command=RUN))
    third = await node.link.done(3)
    assert (node.runtime.creates, node.runtime.runs) == (1, 1)
    for request_id in (1, 2):
        found = await node.link.done(request_id)
        assert found["sb-a"].result is not None
        assert found["sb-a"].result.stdout == b"sb-a"
    assert third["sb-a"].result is not None


async def test_a_repeated_request_after_a_restart_says_that_the_result_is_gone(node: Node) -> None:
    """The agent was killed after the command ran: running it again could do harm."""
    node.runtime.all["sb-a"] = m.SandboxStatus("sb-a", m.SandboxState.RUNNING)
    node.sandboxes.create(create(1, "sb-a", command=RUN))
    item = (await node.link.done(1))["sb-a"]
    assert item.result is not None
    assert item.result.reason is EndReason.LOST
    assert node.runtime.runs == 0


async def test_a_sandbox_that_dies_under_its_command_tells_why(node: Node) -> None:
    """The command ate all memory."""
    node.sandboxes.create(create(1, "sb-a", command=m.Command(["die"])))
    item = (await node.link.done(1))["sb-a"]
    assert item.result is not None
    assert item.result.reason is EndReason.OOM


async def test_remove_after_leaves_nothing_and_tells_the_ends(node: Node, eventually: Any) -> None:
    """One-shot sandboxes."""
    ids = [f"sb-{number}" for number in range(10)]
    node.sandboxes.create(create(1, *ids, command=RUN, remove_after=True))
    await node.link.done(1)
    await eventually(lambda: node.capacity.free().memory_mib == 4000)
    updates = [s for u in node.link.sent if isinstance(u, m.SandboxUpdate) for s in u.sandboxes]
    assert {(s.sandbox_id, s.reason) for s in updates} == {(i, EndReason.EXITED) for i in ids}


async def test_the_owners_word_counts_before_anything_is_made() -> None:
    """node.toml forbids the host image."""
    node = Node(Ceiling(allow_host_image=False))
    node.sandboxes.create(create(1, "sb-a", "sb-b"))
    found = await node.link.done(1)
    assert all("allow_host_image" in item.error for item in found.values())
    node.sandboxes.set_pools(m.SetPools(2, [m.PoolTarget(m.Template(), 5)]))
    assert node.link.sent[-1].code == "refused"
    assert node.runtime.creates == 0


async def test_removals_extensions_and_pools_are_answered(node: Node, eventually: Any) -> None:
    """The small requests."""
    node.sandboxes.create(create(1, "sb-a"))
    await node.link.done(1)
    node.sandboxes.extend(m.ExtendSandbox(2, "sb-a", 60))
    node.sandboxes.extend(m.ExtendSandbox(3, "sb-z", 60))
    node.sandboxes.set_pools(m.SetPools(4, [m.PoolTarget(m.Template(), 5)]))
    node.sandboxes.remove(m.RemoveSandboxes(5, ["sb-a", "sb-unknown"]))
    await eventually(lambda: len([r for r in node.link.sent if isinstance(r, m.Reply)]) == 4)
    replies = {r.request_id: r.code for r in node.link.sent if isinstance(r, m.Reply)}
    assert replies == {2: "", 3: "not_found", 4: "", 5: ""}
    assert [pool.parked for pool in node.runtime.pools] == [5]
    assert node.capacity.free().memory_mib == 4000


async def test_what_runs_after_a_restart_is_counted(node: Node) -> None:
    """The new agent must not promise the memory of 100 living sandboxes again."""
    for number in range(100):
        node.runtime.all[f"sb-{number}"] = m.SandboxStatus(f"sb-{number}", m.SandboxState.RUNNING)
    node.runtime.all["sb-old"] = m.SandboxStatus("sb-old", m.SandboxState.ENDED, EndReason.TTL)
    assert node.sandboxes.adopt() == "sandboxes: 100 adopted"
    assert node.capacity.free().memory_mib == 4000 - 400


# --- items ---


async def test_a_status_waits_a_moment_for_its_result_and_travels_with_it() -> None:
    """A command of a millisecond: one message, one wake-up of the coordinator, not two."""
    sent: list[m.SandboxItems] = []

    async def send(message: m.SandboxItems) -> bool:
        sent.append(message)
        return True

    collector = ItemCollector(1, 1, send)
    collector.add_status(m.SandboxItem("sb-a", m.SandboxStatus("sb-a", m.SandboxState.RUNNING), ready_ms=3.0))
    collector.add(m.SandboxItem("sb-a", result=m.CommandResult(EndReason.EXITED, 0)))
    await collector.finish()
    assert [(len(b.items), b.done) for b in sent] == [(1, True)]
    (item,) = sent[0].items
    assert item.status is not None
    assert item.result is not None
    assert item.ready_ms == 3.0


async def test_a_status_does_not_wait_for_a_long_command() -> None:
    """`sleep 3600`: the coordinator must know the sandbox at once."""
    came = asyncio.Event()

    async def send(_message: m.SandboxItems) -> bool:
        came.set()
        return True

    collector = ItemCollector(1, 1, send)
    collector.add_status(m.SandboxItem("sb-a", m.SandboxStatus("sb-a", m.SandboxState.RUNNING)))
    async with asyncio.timeout(2):
        await came.wait()


@given(st.lists(st.integers(0, 40_000), max_size=60))
def test_batches_keep_order_and_fit_frames(sizes: list[int]) -> None:
    """Outputs of any size: only a result that is larger than a frame by itself exceeds one."""
    items = [
        m.SandboxItem(f"sb-{n:016d}", result=m.CommandResult(EndReason.EXITED, 0, stdout=b"x" * size))
        for n, size in enumerate(sizes)
    ]
    split = batches(items)
    assert [item for batch in split for item in batch] == items
    for batch in split:
        assert len(batch) == 1 or len(encode(m.SandboxItems(1, batch))) <= m.FRAME_BYTES_MAX


@given(st.integers(0, 8 << 20), st.integers(0, 8 << 20))
def test_a_result_is_cut_to_what_a_message_carries_and_counts_what_is_missing(out: int, err: int) -> None:
    """8 MiB of each stream were allowed by the API; the link's messages end at 4 MiB."""
    result = bounded(m.CommandResult(EndReason.EXITED, 0, stdout=bytes(out), stderr=bytes(err)))
    assert len(result.stdout) + len(result.stderr) <= RESULT_BYTES_MAX
    assert len(result.stdout) + result.stdout_bytes_dropped == out
    assert len(result.stderr) + result.stderr_bytes_dropped == err
    if out + err <= RESULT_BYTES_MAX:
        assert result.stdout_bytes_dropped == result.stderr_bytes_dropped == 0
