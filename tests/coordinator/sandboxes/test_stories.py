"""Sandboxes through the control plane, with agents in memory and a real store."""

import asyncio
import base64
import time
from typing import Any

import pytest

from kernpool.bodies import CommandBody, CreateSandboxesBody, LimitsBody, RemoveSandboxesBody, TemplateBody
from kernpool_coordinator.errors import (
    ConflictError,
    InvalidError,
    NoCapacityError,
    NotFoundError,
    PendingError,
    TooLargeError,
    UnreachableError,
)
from kernpool_coordinator.simulation import SimAgent
from kernpool_mesh.messages import CreateSandboxes, RemoveSandboxes, Resources, SandboxItem, SandboxItems
from kernpool_mesh.reasons import EndReason

ECHO = CommandBody(argv=["echo", "hi"])


async def create(stage: Any, count: int = 1, **fields: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Create as ann and read to the end; gives the items and the sum."""
    batches = stage.plane.create_sandboxes(stage.ann, CreateSandboxesBody(count=count, **fields))
    items = [item async for batch in batches for item in batch]
    return items[:-1], items[-1]


def begin(stage: Any, count: int = 1, **fields: Any) -> "asyncio.Task[list[dict[str, Any]]]":
    """The same in the background."""
    batches = stage.plane.create_sandboxes(stage.ann, CreateSandboxesBody(count=count, **fields))

    async def read() -> list[dict[str, Any]]:
        return [item async for batch in batches for item in batch]

    return asyncio.create_task(read())


async def present(stage: Any, **query: Any) -> list[str]:
    return [item["id"] for item in (await stage.plane.sandboxes(stage.ann, **query)).items]


# --- create ---


async def test_sandboxes_are_made_and_listed(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    items, total = await create(stage, 3, labels={"run": "7"}, template=TemplateBody(env={"A": "1"}))
    assert total == {"done": True, "created": 3, "failed": 0}
    body = items[0]["sandbox"]
    assert (body["state"], body["node"], body["labels"], body["template"]["env"]) == (
        "running", "n-a", {"run": "7"}, {"A": "1"},
    )  # fmt: skip
    assert (items[0]["ready_ms"], items[0]["error"], items[0]["result"]) == (1.0, None, None)
    assert await present(stage) == sorted(item["id"] for item in items) == sorted(link.agent.sandboxes)
    assert await present(stage, labels={"run": "7"}, state="running") == await present(stage)
    assert await present(stage, labels={"run": "8"}) == []
    assert stage.plane.sandbox_node(items[0]["id"]) == "n-a"


async def test_each_runs_its_command(stage: Any) -> None:
    await stage.open()
    await stage.join(SimAgent("n-a"))
    items, total = await create(stage, 240, command=ECHO, remove_after=True)
    assert total == {"done": True, "created": 240, "failed": 0}
    assert {base64.b64decode(item["result"]["stdout_b64"]) for item in items} == {b"hi\n"}
    assert await present(stage) == []
    assert len(await present(stage, state="ended", limit=1000)) == 240


async def test_a_create_is_one_message_a_node_split_by_size(stage: Any) -> None:
    await stage.open()
    small = await stage.join(SimAgent("n-a", total=Resources(2000, 8192, 1000)))
    large = await stage.join(SimAgent("n-b", total=Resources(6000, 8192, 1000)))
    await create(stage, 40)
    sizes = [
        [len(message.sandbox_ids) for message in link.sent if isinstance(message, CreateSandboxes)]
        for link in (small, large)
    ]
    assert sizes == [[10], [30]]


async def test_items_come_as_nodes_tell_them(stage: Any) -> None:
    """A slow node must not hold back the answers of a quick one."""
    await stage.open()
    await stage.join(SimAgent("n-a"))
    slow = await stage.join(SimAgent("n-b", holds_creates=True))
    batches = stage.plane.create_sandboxes(stage.ann, CreateSandboxesBody(count=2))
    first = await anext(batches)
    assert first[0]["sandbox"]["node"] == "n-a"
    slow.tell(slow.agent.answer_creates())
    assert (await anext(batches))[0]["sandbox"]["node"] == "n-b"
    assert (await anext(batches))[0]["done"]


async def test_the_hot_path_waits_for_no_store(stage: Any) -> None:
    """Rows follow in the background: a create is answered although not one row of it is written."""
    await stage.open()
    await stage.join(SimAgent("n-a"))
    await stage.settled()
    rows = stage.plane._rooms.store.statistics().rows
    await create(stage, 100)
    assert stage.plane._rooms.store.statistics().rows == rows
    stage.plane.tick()
    await stage.settled()
    assert stage.plane._rooms.store.statistics().rows == rows + 101


async def test_240_cost_little_cpu(stage: Any) -> None:
    """The budget is 30 ms for the coordinator's part; the agent in memory is included here."""
    await stage.open()
    await stage.join(SimAgent("n-a"))
    await create(stage, 240, command=ECHO)
    costs = []
    for _ in range(5):
        before = time.process_time()
        await create(stage, 240, command=ECHO)
        costs.append(time.process_time() - before)
    assert min(costs) < 0.030


async def test_a_named_node_is_used_or_refused(stage: Any) -> None:
    await stage.open()
    await stage.join(SimAgent("n-a"))
    other = await stage.join(SimAgent("n-b", hostname="beta"))
    items, _ = await create(stage, 3, node="beta")
    assert {item["sandbox"]["node"] for item in items} == {"n-b"}
    other.cut()
    with pytest.raises(UnreachableError):
        await create(stage, node="beta")
    with pytest.raises(NotFoundError):
        await create(stage, node="gamma")


async def test_without_room_nothing_is_made_and_the_reason_is_told(stage: Any) -> None:
    await stage.open()
    with pytest.raises(NoCapacityError, match="no node is ready"):
        await create(stage)
    agent = SimAgent("n-a", hostname="alpha", isolation=[])
    await stage.join(agent)
    with pytest.raises(NoCapacityError, match="alpha can hold no sandboxes"):
        await create(stage)
    await stage.join(SimAgent("n-b", hostname="beta", total=Resources(4000, 1000, 1000)))
    limits = TemplateBody(limits=LimitsBody(memory_mib=400))
    with pytest.raises(NoCapacityError, match=r"no room for 3 sandboxes of 400 MiB \(room on beta: 2\)"):
        await create(stage, 3, template=limits)
    assert await present(stage) == []


async def test_a_bad_command_is_refused_before_anything_is_made(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    with pytest.raises(InvalidError, match="base64"):
        await create(stage, command=CommandBody(argv=["x"], stdin_b64="%"))
    with pytest.raises(InvalidError, match="NUL"):
        await create(stage, command=CommandBody(argv=["x\0y"]))
    with pytest.raises(TooLargeError, match="at most"):
        await create(stage, env={"BIG": "x" * (3 << 20)})
    assert (await present(stage), link.sent) == ([], [])


# --- what goes wrong ---


async def test_an_item_that_could_not_be_made_tells_why(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a", holds_creates=True))
    task = begin(stage, 2)
    await stage.until(lambda: link.agent.held)
    order = link.agent.held[0]
    items = [
        SandboxItem(order.sandbox_ids[0], error="no space left"),
        SandboxItem(order.sandbox_ids[1], link.agent.sandboxes[order.sandbox_ids[1]]),
    ]
    link.tell([SandboxItems(order.request_id, items, done=True)])
    bad, good, total = await task
    assert (bad["error"]["code"], bad["error"]["message"]) == ("refused", "no space left")
    assert (good["error"], total["created"], total["failed"]) == (None, 1, 1)
    assert await present(stage) == [order.sandbox_ids[1]]


async def test_a_node_that_finishes_without_an_answer_is_no_silence(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a", holds_creates=True))
    task = begin(stage, 2)
    await stage.until(lambda: link.agent.held)
    link.tell([SandboxItems(link.agent.held[0].request_id, [], done=True)])
    *items, total = await task
    assert {item["error"]["message"] for item in items} == {"its node finished without an answer for it"}
    assert total == {"done": True, "created": 0, "failed": 2}


async def test_a_node_lost_during_a_create_gives_an_error_for_each(stage: Any) -> None:
    """240 are being made when the node's cable is pulled: every id gets an answer, and nothing is left behind."""
    await stage.open()
    good = await stage.join(SimAgent("n-a"))
    link = await stage.join(SimAgent("n-b", holds_creates=True))
    task = begin(stage, 240)
    await stage.until(lambda: link.agent.held)
    link.cut()
    *items, total = await task
    failed = [item for item in items if item["error"]]
    assert (len(items), len(failed), total["failed"]) == (240, 120, 120)
    assert {item["error"]["code"] for item in failed} == {"unreachable"}
    assert len(good.agent.sandboxes) == 120
    # The caller was told of errors: what was made after all is removed when the node is back.
    link.agent.held.clear()
    assert len(link.agent.sandboxes) == 120
    await stage.join(link.agent)
    await stage.until(lambda: not link.agent.sandboxes)
    assert len(await present(stage, limit=1000)) == 120


async def test_what_is_doomed_stays_doomed_across_a_crash(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    items, _ = await create(stage, 3)
    link.cut()
    ids = [item["id"] for item in items]
    answer = await stage.plane.remove_sandboxes(stage.ann, RemoveSandboxesBody(ids=ids[:2]))
    assert answer == {"removed": [], "unreachable": [{"id": one, "node": "n-a"} for one in ids[:2]]}
    await stage.reopen()
    await stage.join(link.agent)
    await stage.until(lambda: list(link.agent.sandboxes) == ids[2:])
    assert await present(stage) == ids[2:]


async def test_a_create_has_a_deadline(stage: Any) -> None:
    await stage.open(create_timeout_s=20.0)
    link = await stage.join(SimAgent("n-a", holds_creates=True))
    task = begin(stage, 2)
    await stage.until(lambda: link.agent.held)
    await stage.pass_time(21, beating=(link,))
    *items, total = await task
    assert {item["error"]["code"] for item in items} == {"timeout"}
    assert total["failed"] == 2
    await stage.until(lambda: not link.agent.sandboxes)


async def test_a_command_has_its_own_time(stage: Any) -> None:
    await stage.open(create_timeout_s=20.0)
    link = await stage.join(SimAgent("n-a", holds_creates=True))
    task = begin(stage, 1, command=CommandBody(argv=["sleep"], timeout_s=100))
    await stage.until(lambda: link.agent.held)
    order = link.agent.held[0]
    name = order.sandbox_ids[0]
    link.tell([SandboxItems(order.request_id, [SandboxItem(name, link.agent.sandboxes[name])])])
    await stage.pass_time(100, beating=(link,))
    assert not task.done()
    await stage.pass_time(30, beating=(link,))
    made, late, total = await task
    assert made["sandbox"]["state"] == "running"
    assert late["error"]["message"] == "no answer in time; its command may have run"
    assert total == {"done": True, "created": 0, "failed": 1}


async def test_a_full_queue_to_a_node_is_an_error_for_each(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    link.full = True
    items, total = await create(stage, 2)
    assert {item["error"]["code"] for item in items} == {"busy"}
    assert (total["failed"], await present(stage)) == (2, [])


async def test_a_reader_that_goes_away_ends_nothing(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a", holds_creates=True))
    task = begin(stage, 2)
    await stage.until(lambda: link.agent.held)
    task.cancel()
    link.tell(link.agent.answer_creates())
    assert len(await present(stage)) == 2


async def test_output_that_nobody_reads_is_dropped_and_counted(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client stops reading in the middle of 10,000 results of a megabyte: memory is not a queue."""
    monkeypatch.setattr("kernpool_coordinator.sandboxes.creation.QUEUE_BYTES_MAX", 100)
    await stage.open()
    await stage.join(SimAgent("n-a"))
    items, total = await create(stage, 100, command=ECHO)
    dropped = [item for item in items if item["result"]["stdout_bytes_dropped"]]
    assert total["created"] == 100
    assert dropped
    assert all(item["result"]["exit_code"] == 0 for item in items)
    assert "did not keep up" in dropped[0]["result"]["detail"]


# --- remove ---


async def test_removal_is_confirmed_by_the_node(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    items, _ = await create(stage, 3, labels={"a": "1"})
    await create(stage, 1)
    answer = await stage.plane.remove_sandboxes(stage.ann, RemoveSandboxesBody(labels={"a": "1"}))
    assert sorted(answer["removed"]) == sorted(item["id"] for item in items)
    assert len(link.agent.sandboxes) == 1
    again = await stage.plane.remove_sandboxes(stage.ann, RemoveSandboxesBody(ids=[items[0]["id"]]))
    assert again["removed"] == [items[0]["id"]]
    with pytest.raises(ConflictError, match="has ended"):
        stage.plane.sandbox_node(items[0]["id"])
    await stage.plane.remove_sandboxes(stage.ann, RemoveSandboxesBody(all=True))
    assert link.agent.sandboxes == {}


async def test_a_remove_wins_over_a_create_in_flight(stage: Any) -> None:
    """Ctrl-C while 240 are being made: those that become ready afterwards are removed too."""
    await stage.open()
    link = await stage.join(SimAgent("n-a", holds_creates=True))
    task = begin(stage, 2)
    await stage.until(lambda: link.agent.held)
    order = link.agent.held.pop()
    await stage.plane.remove_sandboxes(stage.ann, RemoveSandboxesBody(ids=order.sandbox_ids[:1]))
    statuses = [stage.plane._rooms.sandboxes.book.sandboxes[one] for one in order.sandbox_ids]
    assert [one.state for one in statuses] == ["ended", "starting"]
    # The node's create crosses the removal and makes it after all.
    link.agent.ended.clear()
    late = link.agent._create(order)
    assert order.sandbox_ids[0] in link.agent.sandboxes
    link.tell(late + link.agent.answer_creates())
    gone, good, total = await task
    assert (gone["error"]["code"], good["error"], total["failed"]) == ("conflict", None, 1)
    await stage.until(lambda: list(link.agent.sandboxes) == order.sandbox_ids[1:])


async def test_a_node_that_does_not_answer_a_remove_is_named(stage: Any) -> None:
    await stage.open(reply_timeout_s=5.0)
    link = await stage.join(SimAgent("n-a"))
    items, _ = await create(stage, 1)
    link.deaf = True
    task = asyncio.create_task(stage.plane.remove_sandboxes(stage.ann, RemoveSandboxesBody(ids=[items[0]["id"]])))
    await stage.until(lambda: any(isinstance(message, RemoveSandboxes) for message in link.sent))
    await stage.pass_time(6, beating=(link,))
    assert (await task)["unreachable"] == [{"id": items[0]["id"], "node": "n-a"}]


async def test_a_removal_names_what_it_means(stage: Any) -> None:
    await stage.open()
    with pytest.raises(InvalidError):
        await stage.plane.remove_sandboxes(stage.ann, RemoveSandboxesBody())
    with pytest.raises(NotFoundError):
        await stage.plane.remove_sandboxes(stage.ann, RemoveSandboxesBody(ids=["sb-x"]))


async def test_another_workspace_can_touch_nothing(stage: Any) -> None:
    await stage.open()
    await stage.join(SimAgent("n-a"))
    items, _ = await create(stage, 1)
    name = items[0]["id"]
    with pytest.raises(NotFoundError):
        await stage.plane.sandbox(stage.eve, name)
    with pytest.raises(NotFoundError):
        await stage.plane.remove_sandboxes(stage.eve, RemoveSandboxesBody(ids=[name]))
    with pytest.raises(NotFoundError):
        await stage.plane.extend_sandbox(stage.eve, name, 10)
    assert (await stage.plane.remove_sandboxes(stage.eve, RemoveSandboxesBody(all=True)))["removed"] == []
    assert (await stage.plane.sandboxes(stage.eve)).items == []


# --- life ---


async def test_an_end_on_the_node_is_told(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    items, _ = await create(stage, 2)
    link.tell(link.agent.end_sandbox(items[0]["id"], EndReason.TTL))
    body = await stage.plane.sandbox(stage.ann, items[0]["id"])
    assert (body["state"], body["reason"]) == ("ended", "ttl")
    assert await present(stage) == [items[1]["id"]]


async def test_a_sandbox_is_extended_by_its_node(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    items, _ = await create(stage, 1, ttl_s=60)
    body = await stage.plane.extend_sandbox(stage.ann, items[0]["id"], 600)
    assert body["expires_unix_s"] == stage.clock.now().unix + 600
    link.agent.sandboxes.clear()
    with pytest.raises(NotFoundError):
        await stage.plane.extend_sandbox(stage.ann, items[0]["id"], 600)


async def test_200_sandboxes_outlive_a_coordinator(stage: Any) -> None:
    """SIGKILL of the coordinator with 200 sandboxes: all are still there and listed, rows or no rows."""
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    await create(stage, 100, labels={"a": "1"})
    stage.plane.tick()
    await stage.settled()
    with_rows = await present(stage, limit=1000)
    await create(stage, 100, labels={"a": "2"})
    everything = await present(stage, limit=1000)
    # The second hundred has no rows yet: kill -9 loses nothing else.
    stage.plane._rooms.sandboxes.book.unsaved.clear()
    await stage.reopen()
    assert await present(stage, limit=1000) == with_rows
    await stage.join(link.agent)
    assert await present(stage, limit=1000) == everything
    adopted = (await stage.plane.sandboxes(stage.ann, labels={"a": "2"}, limit=1)).items[0]
    assert (adopted["owner"], adopted["workspace"], adopted["state"]) == ("ann", "default", "running")


async def test_what_ended_while_we_were_away_is_ended(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    items, _ = await create(stage, 3)
    stage.plane.tick()
    link.cut()
    link.agent.end_sandbox(items[0]["id"], EndReason.TTL)
    link.agent.end_sandbox(items[1]["id"], EndReason.TTL)
    del link.agent.ended[items[1]["id"]]
    await stage.reopen()
    await stage.join(link.agent)
    bodies = [await stage.plane.sandbox(stage.ann, item["id"]) for item in items]
    assert [(body["state"], body["reason"]) for body in bodies] == [
        ("ended", "ttl"),
        ("ended", "lost"),
        ("running", None),
    ]


async def test_sandboxes_of_a_lost_node_come_back_with_it(stage: Any) -> None:
    await stage.open(node_lost_after_s=10.0)
    link = await stage.join(SimAgent("n-a"))
    items, _ = await create(stage, 1)
    name = items[0]["id"]
    link.cut()
    await stage.pass_time(20)
    assert (await stage.plane.sandbox(stage.ann, name))["reason"] == "node_lost"
    await stage.join(link.agent)
    assert (await stage.plane.sandbox(stage.ann, name))["state"] == "running"
    assert name in link.agent.sandboxes


# --- idempotency ---


async def test_a_repeated_key_gives_the_same_sandboxes(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    first, _ = await create(stage, 3, command=ECHO, idempotency_key="k")
    second, total = await create(stage, 3, command=ECHO, idempotency_key="k")
    assert first == second
    assert total == {"done": True, "created": 3, "failed": 0}
    assert len(link.agent.sandboxes) == 3
    with pytest.raises(ConflictError, match="different request"):
        await create(stage, 4, command=ECHO, idempotency_key="k")


async def test_two_at_once_with_one_key_are_one_create(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a", holds_creates=True))
    tasks = [begin(stage, 2, idempotency_key="k") for _ in range(2)]
    await stage.until(lambda: link.agent.held)
    link.tell(link.agent.answer_creates())
    assert await tasks[0] == await tasks[1]
    assert len(link.agent.sandboxes) == 2


async def test_a_repeated_key_is_pending_while_its_node_is_away(stage: Any) -> None:
    """The answer was lost with the link: whether they were made only the node knows, so nothing is made twice."""
    await stage.open()
    link = await stage.join(SimAgent("n-a", holds_creates=True))
    task = begin(stage, 2, idempotency_key="k")
    await stage.until(lambda: link.agent.held)
    link.cut()
    *items, _ = await task
    assert {item["error"]["code"] for item in items} == {"unreachable"}
    other = await stage.join(SimAgent("n-b"))
    with pytest.raises(PendingError, match="pending on n-a"):
        await create(stage, 2, idempotency_key="k")
    link.agent.holds_creates = False
    await stage.join(link.agent)
    again, total = await create(stage, 2, idempotency_key="k")
    assert [item["sandbox"]["state"] for item in again] == ["running", "running"]
    assert [item["id"] for item in again] == [item["id"] for item in items]
    assert (total["created"], other.agent.sandboxes, len(link.agent.sandboxes)) == (2, {}, 2)


async def test_a_repeated_key_runs_no_command_twice(stage: Any) -> None:
    """The command sends a mail; the answer is lost; the client asks again."""
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    link.mute = True
    task = begin(stage, 2, command=ECHO, remove_after=True, idempotency_key="k")
    await stage.until(lambda: link.agent.runs.total() == 2)
    link.mute = False
    link.cut()
    await task
    await stage.join(link.agent)
    items, total = await create(stage, 2, command=ECHO, remove_after=True, idempotency_key="k")
    assert (total["created"], [item["sandbox"]["state"] for item in items]) == (2, ["ended", "ended"])
    assert set(link.agent.runs.values()) == {1}


async def test_a_repeated_key_makes_what_was_never_made(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a", holds_creates=True))
    task = begin(stage, 2, idempotency_key="k")
    await stage.until(lambda: link.agent.held)
    link.cut()
    await task
    link.agent.sandboxes.clear()
    link.agent.held.clear()
    link.agent.holds_creates = False
    await stage.join(link.agent)
    items, total = await create(stage, 2, idempotency_key="k")
    assert (total["created"], sorted(link.agent.sandboxes)) == (2, sorted(item["id"] for item in items))


async def test_a_key_outlives_the_coordinator(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    first, _ = await create(stage, 2, idempotency_key="k")
    await stage.settled()
    await stage.reopen()
    with pytest.raises(PendingError):
        await create(stage, 2, idempotency_key="k")
    await stage.join(link.agent)
    again, total = await create(stage, 2, idempotency_key="k")
    assert [item["id"] for item in again] == [item["id"] for item in first]
    assert (total["created"], len(link.agent.sandboxes)) == (2, 2)


async def test_even_a_key_whose_row_was_lost_makes_nothing_twice(stage: Any) -> None:
    """The coordinator was killed in the millisecond between sending and writing."""
    await stage.open(cluster_id="k-1")
    link = await stage.join(SimAgent("n-a"))
    first, _ = await create(stage, 2, idempotency_key="k")
    await stage.planes.pop().close()
    for path in stage.state_dir.glob("kernpool.db*"):
        path.unlink()
    await stage.open(cluster_id="k-1")
    await stage.join(link.agent)
    again, total = await create(stage, 2, idempotency_key="k")
    assert sorted(item["id"] for item in again) == sorted(item["id"] for item in first)
    assert (total["created"], len(link.agent.sandboxes)) == (2, 2)


# --- pools ---


async def test_pools_are_told_to_every_node(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    assert link.agent.pools == []
    pools = [{"template": {"image": "host"}, "parked": 50, "drain_after_s": 60}]
    told = await stage.plane.set_pools(stage.ann, pools)
    assert (told[0]["parked"], told[0]["template"]["user"]) == (50, "root")
    await stage.until(lambda: link.agent.pools and link.agent.pools[-1].pools[0].parked == 50)
    await stage.reopen()
    again = await stage.join(SimAgent("n-b"))
    await stage.until(lambda: again.agent.pools and again.agent.pools[-1].pools[0].parked == 50)
    await stage.plane.set_pools(stage.ann, [])
    await stage.until(lambda: again.agent.pools[-1].pools == [])
    for bad in ([{"parked": -1}], [{"parked": 1, "size": 2}], [{"parked": 1}, {"parked": 2}]):
        with pytest.raises(InvalidError):
            await stage.plane.set_pools(stage.ann, bad)
