"""Job logs through the coordinator: raw, followed, resumed, and honest about what is missing."""

import asyncio
from typing import Any

import aiohttp
import pytest
from running import Coordinator, Enrol, Start
from standin import StandIn, until

TASK = {"task": {"name": "hello", "run": "echo hi"}}


async def _submit(coordinator: Coordinator) -> str:
    return str((await coordinator.json("POST", "/api/v1/jobs", json=TASK))["id"])


async def _started(coordinator: Coordinator) -> str:
    """A job whose rank runs."""
    job_id = await _submit(coordinator)
    await coordinator.wait_job(job_id, "running")
    return job_id


async def test_a_log_comes_raw_with_the_offset_of_its_first_byte(coordinator: Coordinator, agent: StandIn) -> None:
    """Bytes that are no UTF-8 as well."""
    job_id = await _started(coordinator)
    agent.plane.append(b"one\ntwo\n\xff\x00three")
    async with coordinator.request("GET", f"/api/v1/jobs/{job_id}/logs") as answer:
        assert await answer.read() == b"one\ntwo\n\xff\x00three"
        assert answer.headers["KP-Log-Offset"] == "0"
        assert answer.headers["Content-Type"] == "application/octet-stream"
    async with coordinator.request("GET", f"/api/v1/jobs/{job_id}/logs?offset=4") as answer:
        assert (answer.headers["KP-Log-Offset"], await answer.read()) == ("4", b"two\n\xff\x00three")
    async with coordinator.request("GET", f"/api/v1/jobs/{job_id}/logs?tail=2") as answer:
        assert (answer.headers["KP-Log-Offset"], await answer.read()) == ("4", b"two\n\xff\x00three")


async def test_bytes_that_were_rotated_away_are_told_by_the_offset(coordinator: Coordinator, agent: StandIn) -> None:
    """A reader comes late."""
    job_id = await _started(coordinator)
    agent.plane.append(b"0123456789")
    agent.plane.log_start = 5
    async with coordinator.request("GET", f"/api/v1/jobs/{job_id}/logs?offset=2") as answer:
        assert (answer.headers["KP-Log-Offset"], await answer.read()) == ("5", b"56789")


async def test_following_gives_bytes_as_they_come_and_ends_with_the_attempt(
    coordinator: Coordinator, agent: StandIn
) -> None:
    """`kernpool logs -f`."""
    job_id = await _started(coordinator)
    agent.plane.append(b"a\n")
    async with coordinator.request("GET", f"/api/v1/jobs/{job_id}/logs?follow=1") as answer:
        assert await asyncio.wait_for(answer.content.readline(), 5) == b"a\n"
        agent.plane.append(b"b\n")
        assert await asyncio.wait_for(answer.content.readline(), 5) == b"b\n"
        agent.plane.append(b"c", end=True)
        assert await asyncio.wait_for(answer.content.read(), 5) == b"c"


async def test_following_waits_for_the_start(coordinator: Coordinator, enrol: Enrol) -> None:
    """The log is asked for before any node is there."""
    job_id = await _submit(coordinator)
    status, problem = await coordinator.problem("GET", f"/api/v1/jobs/{job_id}/logs")
    assert (status, problem["code"]) == (409, "conflict")
    assert "follow=1" in problem["hint"]
    task = asyncio.create_task(coordinator.request("GET", f"/api/v1/jobs/{job_id}/logs?follow=1").__aenter__())
    agent = await enrol()
    agent.plane.append(b"hi\n", end=True)
    await agent.link()
    if isinstance(coordinator.daemon.api.core, object) and hasattr(coordinator.daemon.api.core, "_start"):
        coordinator.daemon.api.core._start(job_id)
    answer = await asyncio.wait_for(task, 5)
    assert await answer.read() == b"hi\n"
    answer.release()


async def test_following_survives_a_restart_of_the_agent_without_losing_or_repeating_a_byte(
    coordinator: Coordinator, agent: StandIn
) -> None:
    """The agent is upgraded while a training runs; the job goes on and so does its log."""
    job_id = await _started(coordinator)
    agent.plane.append(b"before ")
    async with coordinator.request("GET", f"/api/v1/jobs/{job_id}/logs?follow=1") as answer:
        assert await answer.content.readexactly(7) == b"before "
        await agent.drop()
        agent.plane.append(b"meanwhile ")
        await coordinator.wait_state(agent.node_id, "unreachable")
        await agent.link()
        agent.plane.append(b"after", end=True)
        assert await asyncio.wait_for(answer.content.read(), 5) == b"meanwhile after"
    assert agent.plane.log_requests[-1] == "offset=7&follow=1"


async def test_following_goes_on_when_the_node_cuts_one_answer(coordinator: Coordinator, agent: StandIn) -> None:
    """The data plane restarts while the link stands."""
    job_id = await _started(coordinator)
    agent.plane.append(b"0123456789", end=True)
    agent.plane.cut_log_after = 4
    async with coordinator.request("GET", f"/api/v1/jobs/{job_id}/logs?follow=1") as answer:
        assert await answer.content.readexactly(4) == b"0123"
        agent.plane.gate.set()
        assert await asyncio.wait_for(answer.content.read(), 5) == b"456789"


async def test_a_log_that_goes_on_elsewhere_is_cut(coordinator: Coordinator, agent: StandIn) -> None:
    """While the link was away bytes were rotated away: only a new answer's head can tell the client so."""
    job_id = await _started(coordinator)
    agent.plane.append(b"before ")
    async with coordinator.request("GET", f"/api/v1/jobs/{job_id}/logs?follow=1") as answer:
        assert await answer.content.readexactly(7) == b"before "
        await agent.drop()
        agent.plane.append(b"lost, then this")
        agent.plane.log_start = 13
        await agent.link()
        with pytest.raises(aiohttp.ClientPayloadError):
            await asyncio.wait_for(answer.content.read(), 5)
    async with coordinator.request("GET", f"/api/v1/jobs/{job_id}/logs?offset=7") as answer:
        assert (answer.headers["KP-Log-Offset"], await answer.read()) == ("13", b"then this")


async def test_a_node_that_does_not_come_back_ends_the_following_and_the_next_answer_says_why(
    start: Start, tmp_path: Any
) -> None:
    """The machine burned down."""
    coordinator = await start(log_reconnect_s=1.0)
    token = await coordinator.join_token()
    agent = await StandIn.enrol(coordinator.node_url, token, coordinator.ca_pem, tmp_path, hostname="alpha")
    await agent.link()
    await coordinator.wait_state(agent.node_id, "ready")
    job_id = await _started(coordinator)
    agent.plane.append(b"x")
    async with coordinator.request("GET", f"/api/v1/jobs/{job_id}/logs?follow=1") as answer:
        assert await answer.content.readexactly(1) == b"x"
        await agent.drop()
        with pytest.raises(aiohttp.ClientPayloadError):
            await asyncio.wait_for(answer.content.read(), 10)
    status, problem = await coordinator.problem("GET", f"/api/v1/jobs/{job_id}/logs?follow=1")
    assert (status, problem["code"]) == (503, "unreachable")
    await agent.close()


async def test_a_follower_that_hangs_up_ends_the_request_at_the_node(coordinator: Coordinator, agent: StandIn) -> None:
    """Ctrl-C of `logs -f`, while nothing is written."""
    job_id = await _started(coordinator)
    agent.plane.append(b"x")
    async with coordinator.request("GET", f"/api/v1/jobs/{job_id}/logs?follow=1") as answer:
        await answer.content.readexactly(1)
        answer.close()
    await asyncio.wait_for(agent.plane.cancelled.wait(), 5)
    await until(lambda: not coordinator.daemon.api.streams.running)


async def test_an_unknown_job_or_rank_is_not_found(coordinator: Coordinator, agent: StandIn) -> None:
    """A typo in the id."""
    assert (await coordinator.problem("GET", "/api/v1/jobs/j-999/logs"))[0] == 404
    job_id = await _started(coordinator)
    assert (await coordinator.problem("GET", f"/api/v1/jobs/{job_id}/logs?index=7"))[0] == 404


@pytest.mark.parametrize("query", ["offset=-1", "offset=x", "tail=-1", "follow=2", "index=-1", "lines=3"])
async def test_a_wrong_query_is_refused(coordinator: Coordinator, agent: StandIn, query: str) -> None:
    """Nothing is guessed."""
    status, problem = await coordinator.problem("GET", f"/api/v1/jobs/j-1/logs?{query}")
    assert (status, problem["code"]) in ((400, "invalid"), (404, "not_found"))


async def test_waiting_for_a_job_ends_with_it(coordinator: Coordinator, agent: StandIn) -> None:
    """A long poll: `launch` in the foreground."""
    job_id = await _started(coordinator)
    assert (await coordinator.json("GET", f"/api/v1/jobs/{job_id}/wait?timeout_s=0.05"))["state"] == "running"
    task = asyncio.create_task(coordinator.json("GET", f"/api/v1/jobs/{job_id}/wait?timeout_s=30"))
    await asyncio.sleep(0)
    agent.end_attempt(job_id, exit_code=0)
    assert (await asyncio.wait_for(task, 5))["state"] == "succeeded"
