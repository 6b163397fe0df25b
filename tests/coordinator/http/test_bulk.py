"""Bulk creates as NDJSON, pages of lists, access tokens and followed events."""

import asyncio
import json
import time

import aiohttp
import pytest
from running import Coordinator, MakeSandbox
from standin import StandIn

from kernpool_mesh import datatoken
from kernpool_mesh.messages import CreateSandboxes, SandboxItem, SandboxItems, SandboxState, SandboxStatus


async def test_every_item_is_a_line_and_the_last_one_is_the_sum(coordinator: Coordinator, agent: StandIn) -> None:
    """240 at once."""
    lines = await coordinator.lines(count=240, command={"argv": ["true"]})
    assert lines[-1] == {"done": True, "created": 240, "failed": 0}
    assert len({line["id"] for line in lines[:-1]}) == 240
    assert all(line["result"]["exit_code"] == 0 for line in lines[:-1] if line["result"])


async def test_a_create_that_cannot_begin_is_an_ordinary_error(coordinator: Coordinator) -> None:
    """No node is there: a Problem, not an empty stream."""
    status, problem = await coordinator.problem("POST", "/api/v1/sandboxes", json={"count": 2})
    assert (status, problem["code"]) == (503, "no_capacity")


async def test_lines_come_as_the_node_tells_them(coordinator: Coordinator, agent: StandIn) -> None:
    """The first sandboxes are usable while the others are being made."""
    asked: list[CreateSandboxes] = []

    def first(message: CreateSandboxes) -> None:
        asked.append(message)
        tell(message.sandbox_ids[:1], done=False)

    def tell(ids: list[str], *, done: bool) -> None:
        items = [SandboxItem(id_, SandboxStatus(id_, SandboxState.RUNNING)) for id_ in ids]
        assert agent.connection is not None
        agent.connection.send_nowait(SandboxItems(asked[0].request_id, items, done=done))

    agent.on_create = first
    async with coordinator.request("POST", "/api/v1/sandboxes", json={"count": 3}) as answer:
        assert json.loads(await answer.content.readline())["id"] == asked[0].sandbox_ids[0]
        tell(asked[0].sandbox_ids[1:], done=True)
        rest = [json.loads(line) for line in (await answer.read()).splitlines()]
    assert [line.get("id") for line in rest] == [*asked[0].sandbox_ids[1:], None]


async def test_a_bulk_answer_that_is_cut_is_seen_as_cut(coordinator: Coordinator, agent: StandIn) -> None:
    """The coordinator stops in the midst of it: no last line, no last chunk."""

    def half(message: CreateSandboxes) -> None:
        first = message.sandbox_ids[0]
        item = SandboxItem(first, SandboxStatus(first, SandboxState.RUNNING))
        assert agent.connection is not None
        agent.connection.send_nowait(SandboxItems(message.request_id, [item]))

    agent.on_create = half
    async with coordinator.request("POST", "/api/v1/sandboxes", json={"count": 2}) as answer:
        assert json.loads(await answer.content.readline())["id"].startswith("sb-")
        closing = asyncio.create_task(coordinator.daemon.close())
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()
        await asyncio.wait_for(closing, 10)


async def test_lists_come_in_pages_that_join_without_gap_or_overlap(coordinator: Coordinator, agent: StandIn) -> None:
    """A client that walks `next` sees each sandbox once."""
    made = {line["id"] for line in await coordinator.lines(count=25) if "id" in line}
    seen: list[str] = []
    after = ""
    for _ in range(10):
        page = await coordinator.json("GET", "/api/v1/sandboxes", params={"limit": "7", "after": after})
        assert len(page["items"]) <= 7
        seen += [item["id"] for item in page["items"]]
        if not (after := page["next"]):
            break
    assert len(seen) == 25
    assert set(seen) == made


async def test_jobs_of_several_states_come_as_one_list_newest_first(coordinator: Coordinator, agent: StandIn) -> None:
    """`kernpool queue` asks for all that have not ended."""
    ids = [(await coordinator.json("POST", "/api/v1/jobs", json={"task": {"run": "true"}}))["id"] for _ in range(6)]
    for job_id in ids:
        await coordinator.wait_job(job_id, "running")
    for job_id in ids[::2]:
        agent.end_attempt(job_id)
        await coordinator.wait_job(job_id, "succeeded")
    seen: list[str] = []
    after = ""
    while True:
        query = [("state", "running"), ("state", "succeeded"), ("state", "pending"), ("limit", "4"), ("after", after)]
        page = await coordinator.json("GET", "/api/v1/jobs", params=query)
        seen += [item["id"] for item in page["items"]]
        if not (after := page["next"]):
            break
    assert seen == ids[::-1]
    page = await coordinator.json("GET", "/api/v1/jobs?state=running")
    assert [item["id"] for item in page["items"]] == ids[1::2][::-1]


@pytest.mark.parametrize("path", ["tokens", "join-tokens"])
async def test_short_lists_are_paged_as_well(coordinator: Coordinator, path: str) -> None:
    """Every list takes limit and after."""
    for number in range(5):
        body = {"name": f"t{number}"} if path == "tokens" else {}
        await coordinator.json("POST", f"/api/v1/{path}", json=body)
    seen: list[str] = []
    after = ""
    while True:
        page = await coordinator.json("GET", f"/api/v1/{path}", params={"limit": "2", "after": after})
        assert len(page["items"]) <= 2
        seen += [item["id"] for item in page["items"]]
        if not (after := page["next"]):
            break
    assert len(seen) == len(set(seen)) >= 5


async def test_labels_select_and_a_label_without_value_is_refused(coordinator: Coordinator, agent: StandIn) -> None:
    """`kernpool sandbox ls --label run=7`."""
    status, problem = await coordinator.problem("GET", "/api/v1/sandboxes?label=run")
    assert (status, problem["code"]) == (400, "invalid")
    assert "KEY=VALUE" in problem["message"]
    page = await coordinator.json("GET", "/api/v1/sandboxes?label=run%3D7&label=a%3Db%3Dc")
    assert page["next"] == ""


async def test_an_access_token_is_what_the_node_takes(
    coordinator: Coordinator, agent: StandIn, sandbox: MakeSandbox
) -> None:
    """A client that can reach the node goes straight there."""
    sandbox_id = await sandbox()
    access = await coordinator.json("POST", f"/api/v1/sandboxes/{sandbox_id}/access")
    assert agent.welcome is not None
    keys = {agent.welcome.data_key_id: agent.welcome.data_key}
    claims = datatoken.verify(access["token"], keys, agent.node_id, time.time())
    assert claims.object == f"sandbox/{sandbox_id}"
    assert set(claims.verbs) == {"exec", "read", "write", "connect"}
    assert access["server_name"] == f"{agent.node_id}.node.kernpool.internal"
    assert access["urls"] == ["https://127.0.0.1:1"]
    assert access["ca_pem"] == coordinator.ca_pem
    assert 0 < access["expires_in_s"] <= 300


async def test_access_to_a_job_is_for_its_log_only(coordinator: Coordinator, agent: StandIn) -> None:
    """A token for logs opens nothing else."""
    job = await coordinator.json("POST", "/api/v1/jobs", json={"task": {"run": "true"}})
    await coordinator.wait_job(job["id"], "running")
    access = await coordinator.json("POST", f"/api/v1/jobs/{job['id']}/access")
    assert agent.welcome is not None
    keys = {agent.welcome.data_key_id: agent.welcome.data_key}
    claims = datatoken.verify(access["token"], keys, agent.node_id, time.time())
    assert (claims.object, claims.verbs) == (f"job/{job['id']}", ("logs",))


async def test_there_is_no_access_to_a_node_that_is_away(
    coordinator: Coordinator, agent: StandIn, sandbox: MakeSandbox
) -> None:
    """No key, no token."""
    sandbox_id = await sandbox()
    await agent.drop()
    await coordinator.wait_state(agent.node_id, "unreachable")
    status, problem = await coordinator.problem("POST", f"/api/v1/sandboxes/{sandbox_id}/access")
    assert (status, problem["code"]) == (503, "unreachable")


async def test_the_idempotency_key_may_come_as_a_header(coordinator: Coordinator, agent: StandIn) -> None:
    """As other APIs take it; it is checked like the one in the body."""
    headers = {"Idempotency-Key": "k" * 300}
    status, problem = await coordinator.problem("POST", "/api/v1/sandboxes", json={}, headers=headers)
    assert (status, problem["details"][0]["key"]) == (400, "idempotency_key")
