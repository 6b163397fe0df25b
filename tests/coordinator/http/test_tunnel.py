"""Everything inside a sandbox goes through the link to the node's own server, streamed, with back-pressure."""

import asyncio
import contextlib
import io
import os
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from running import Coordinator, MakeSandbox
from standin import StandIn, standstill, until

MIB = 1 << 20


async def test_twenty_megabytes_go_up_and_down(coordinator: Coordinator, agent: StandIn, sandbox: MakeSandbox) -> None:
    """A data set into a sandbox, a model out of it."""
    data = os.urandom(20 * MIB)
    path = f"/api/v1/sandboxes/{await sandbox()}/files?path=/data.bin"
    async with coordinator.request("PUT", path, data=io.BytesIO(data)) as answer:
        assert answer.status == 204
    assert agent.plane.files["/data.bin"] == data
    async with coordinator.request("GET", path) as answer:
        assert answer.headers["Content-Length"] == str(len(data))
        assert await answer.read() == data


async def test_a_body_of_unknown_length_goes_up_in_chunks(
    coordinator: Coordinator, agent: StandIn, sandbox: MakeSandbox
) -> None:
    """`tar c | curl -T -`."""

    async def parts() -> AsyncIterator[bytes]:
        for number in range(100):
            yield bytes([number]) * 1000

    async with coordinator.request("PUT", f"/api/v1/sandboxes/{await sandbox()}/files?path=/x", data=parts()) as answer:
        assert answer.status == 204
    assert len(agent.plane.files["/x"]) == 100_000


async def test_the_node_gets_no_token_and_the_client_no_cookie(
    coordinator: Coordinator, agent: StandIn, sandbox: MakeSandbox
) -> None:
    """A stolen node must learn no token; a page in a sandbox must not become a page of the API."""
    headers = {"Cookie": "session=1", "X-Forwarded-For": "1.2.3.4", "KP-Actor": "root", "Range": "bytes=0-1"}
    path = f"/api/v1/sandboxes/{await sandbox()}/files?path=/page.html"
    async with coordinator.request("GET", path, headers=headers) as answer:
        assert answer.status == 200
        assert "Set-Cookie" not in answer.headers
        assert "X-Evil" not in answer.headers
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Content-Security-Policy"] == "sandbox"
    _, seen, _ = agent.plane.seen[-1]
    names = {name.lower() for name in seen}
    assert not names & {"authorization", "cookie", "x-forwarded-for", "kp-actor"}
    assert seen["Range"] == "bytes=0-1"


async def test_the_stream_says_who_acts_on_what_with_which_verb(
    coordinator: Coordinator, agent: StandIn, sandbox: MakeSandbox
) -> None:
    """The node checks every request against it."""
    sandbox_id = await sandbox()
    for method, tail, verb in (
        ("GET", "files?path=/x", "read"),
        ("PUT", "files?path=/x", "write"),
        ("POST", "exec", "exec"),
    ):
        body = {"json": {"argv": ["true"]}} if tail == "exec" else {}
        async with coordinator.request(method, f"/api/v1/sandboxes/{sandbox_id}/{tail}", **body) as answer:
            await answer.read()
        _, _, stream = agent.plane.seen[-1]
        assert (stream.object, stream.verbs) == (f"sandbox/{sandbox_id}", (verb,))
        assert stream.actor


async def test_the_query_reaches_the_node_byte_for_byte(
    coordinator: Coordinator, agent: StandIn, sandbox: MakeSandbox
) -> None:
    """File names that are no UTF-8 and names with every awkward character."""
    import yarl

    url = f"{coordinator.url}/api/v1/sandboxes/{await sandbox()}/files/list?path=/a%FF%20%2F%2B%26+b&x=%3D"
    async with coordinator.session.get(yarl.URL(url, encoded=True), headers=coordinator.headers) as answer:
        assert answer.status == 200
    assert agent.plane.seen[-1][0].partition("?")[2] == "path=/a%FF%20%2F%2B%26+b&x=%3D"


async def test_an_error_of_the_node_comes_through_as_it_is(
    coordinator: Coordinator, agent: StandIn, sandbox: MakeSandbox
) -> None:
    """One data plane, two doors: the Problem is the same by both."""
    path = f"/api/v1/sandboxes/{await sandbox()}/files"
    status, problem = await coordinator.problem("GET", f"{path}?path=/none")
    assert (status, problem["code"]) == (404, "not_found")
    status, problem = await coordinator.problem("PUT", f"{path}?path=/refused", data=io.BytesIO(b"x" * (5 * MIB)))
    assert (status, problem["code"]) == (507, "disk_full")


async def test_output_comes_while_the_command_runs(
    coordinator: Coordinator, agent: StandIn, sandbox: MakeSandbox
) -> None:
    """`kernpool sandbox exec` shows lines as they come."""
    path = f"/api/v1/sandboxes/{await sandbox()}/exec"
    async with coordinator.request("POST", path, json={"argv": ["wait"]}) as answer:
        first = await asyncio.wait_for(answer.content.readline(), 5)
        assert b"stdout" in first
        agent.plane.gate.set()
        assert b"exit" in await asyncio.wait_for(answer.content.readline(), 5)


async def test_a_client_that_hangs_up_ends_the_request_at_the_node(
    coordinator: Coordinator, agent: StandIn, sandbox: MakeSandbox
) -> None:
    """Ctrl-C of an exec must not leave the command running."""
    path = f"/api/v1/sandboxes/{await sandbox()}/exec"
    async with coordinator.request("POST", path, json={"argv": ["wait"]}) as answer:
        await answer.content.readline()
        answer.close()
    await asyncio.wait_for(agent.plane.cancelled.wait(), 5)


async def test_an_answer_that_the_node_cuts_is_cut_for_the_client(
    coordinator: Coordinator, agent: StandIn, sandbox: MakeSandbox
) -> None:
    """Half a file must never look like a whole one."""
    async with coordinator.request("GET", f"/api/v1/sandboxes/{await sandbox()}/files?path=/cut") as answer:
        assert await answer.content.readexactly(10) == b"x" * 10
        agent.plane.gate.set()
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()


async def test_a_cut_upload_never_becomes_a_file(
    coordinator: Coordinator, agent: StandIn, sandbox: MakeSandbox
) -> None:
    """The client dies in the midst of an upload."""
    host, port = coordinator.daemon.api_address.host, coordinator.daemon.api_address.port
    _, writer = await asyncio.open_connection(host, port)
    head = (
        f"PUT /api/v1/sandboxes/{await sandbox()}/files?path=/half HTTP/1.1\r\nHost: x\r\n"
        f"Authorization: Bearer {coordinator.token}\r\nContent-Length: 1000\r\n\r\n"
    )
    writer.write(head.encode() + b"x" * 500)
    await until(lambda: agent.plane.body_bytes == 500)
    writer.transport.abort()
    await asyncio.wait_for(agent.plane.cancelled.wait(), 5)
    assert "/half" not in agent.plane.files


async def test_an_upload_waits_for_a_slow_node(coordinator: Coordinator, agent: StandIn, sandbox: MakeSandbox) -> None:
    """The coordinator buffers little: a node that reads nothing stops the client."""
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            yield b"x" * 65536
            sent += 65536

    async def upload() -> None:
        async with coordinator.request(
            "PUT", f"/api/v1/sandboxes/{sandbox_id}/files?path=/slow", data=endless()
        ) as answer:
            await answer.read()

    sandbox_id = await sandbox()
    task = asyncio.create_task(upload())
    await until(lambda: agent.plane.body_bytes > 0)
    assert await standstill(lambda: sent) < 16 * MIB
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    agent.plane.gate.set()  # a client's end is seen once its last bytes are taken
    await asyncio.wait_for(agent.plane.cancelled.wait(), 5)


async def test_a_download_waits_for_a_slow_client(
    coordinator: Coordinator, agent: StandIn, sandbox: MakeSandbox
) -> None:
    """A client that stops reading stops the node, and others are served meanwhile."""
    sandbox_id = await sandbox()
    async with coordinator.request("GET", f"/api/v1/sandboxes/{sandbox_id}/files?path=/endless") as answer:
        await answer.content.readexactly(100_000)
        assert await standstill(lambda: agent.plane.sent_bytes) < 16 * MIB
        async with coordinator.request("GET", f"/api/v1/sandboxes/{sandbox_id}/files/list?path=/") as other:
            assert other.status == 200
        answer.close()
    await asyncio.wait_for(agent.plane.cancelled.wait(), 5)


@pytest.mark.parametrize("tail", ["exec", "ports/80"])
async def test_a_websocket_carries_frames_both_ways(
    coordinator: Coordinator, agent: StandIn, sandbox: MakeSandbox, tail: str
) -> None:
    """Interactive exec and port forwarding."""
    url = f"{coordinator.url}/api/v1/sandboxes/{await sandbox()}/{tail}"
    async with coordinator.session.ws_connect(url, headers=coordinator.headers, max_msg_size=0) as websocket:
        await websocket.send_str("hello")
        assert (await websocket.receive(5)).data == "hello"
        for size in (1, 125, 126, 65_535, 65_536, 900_000):
            data = os.urandom(size)
            await websocket.send_bytes(data)
            assert (await websocket.receive(5)).data == data
        await websocket.ping()
        await websocket.send_str("bye")
        closing = await websocket.receive(5)
        assert closing.type is aiohttp.WSMsgType.CLOSE
        assert (closing.data, closing.extra) == (4000, "as you said")


async def test_a_flood_of_frames_waits_for_the_client(
    coordinator: Coordinator, agent: StandIn, sandbox: MakeSandbox
) -> None:
    """64 MiB of output to a terminal that is stopped for a moment."""
    url = f"{coordinator.url}/api/v1/sandboxes/{await sandbox()}/exec"
    async with coordinator.session.ws_connect(url, headers=coordinator.headers, max_msg_size=0) as websocket:
        await websocket.send_str("flood")
        await coordinator.json("GET", "/api/v1/info")
        for _ in range(64):
            assert len((await websocket.receive(10)).data) == MIB


async def test_a_websocket_client_that_vanishes_ends_the_node_s_side(
    coordinator: Coordinator, agent: StandIn, sandbox: MakeSandbox
) -> None:
    """A laptop lid is closed."""
    url = f"{coordinator.url}/api/v1/sandboxes/{await sandbox()}/exec"
    async with coordinator.session.ws_connect(url, headers=coordinator.headers) as websocket:
        await websocket.send_str("x")
        await websocket.receive(5)
        connection = websocket._response.connection
        assert connection is not None
        assert connection.transport is not None
        connection.transport.abort()
        await asyncio.wait_for(agent.plane.cancelled.wait(), 5)


async def test_an_upgrade_that_the_node_refuses_is_an_ordinary_error(
    coordinator: Coordinator, agent: StandIn, sandbox: MakeSandbox
) -> None:
    """Nothing listens on that port inside."""
    headers = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Version": "13",
    }
    path = f"/api/v1/sandboxes/{await sandbox()}/ports/81"
    status, problem = await coordinator.problem("GET", path, headers=headers)
    assert (status, problem["code"]) == (502, "unreachable")


@pytest.mark.parametrize("port", ["0", "65536", "http", "-1", "1%2F..", "99999999999999999999"])
async def test_a_port_that_is_none_never_reaches_the_node(
    coordinator: Coordinator, agent: StandIn, sandbox: MakeSandbox, port: str
) -> None:
    """The path to the node is built here, from checked parts."""
    status, problem = await coordinator.problem("GET", f"/api/v1/sandboxes/{await sandbox()}/ports/{port}")
    assert (status, problem["code"]) == (400, "invalid")
    assert agent.plane.seen == []


async def test_kept_alive_streams_are_shared_within_one_grant_only(
    coordinator: Coordinator, agent: StandIn, sandbox: MakeSandbox
) -> None:
    """Pooling must never lend one actor's or verb's stream to another."""
    one, other = await sandbox(), await sandbox()

    async def stream_of(sandbox_id: str, tail: str, method: str = "GET") -> Any:
        async with coordinator.request(method, f"/api/v1/sandboxes/{sandbox_id}/{tail}") as answer:
            await answer.read()
        return agent.plane.seen[-1][2]

    first = await stream_of(one, "files/list?path=/")
    assert await stream_of(one, "files/list?path=/") is first
    assert await stream_of(one, "files?path=/x", "PUT") is not first
    assert await stream_of(other, "files/list?path=/") is not first


async def test_an_unknown_sandbox_is_not_found(coordinator: Coordinator, agent: StandIn) -> None:
    """It was removed a moment ago."""
    status, problem = await coordinator.problem("POST", "/api/v1/sandboxes/sb-none/exec", json={"argv": ["x"]})
    assert (status, problem["code"]) == (404, "not_found")


async def test_a_node_that_is_away_is_said_to_be_unreachable(
    coordinator: Coordinator, agent: StandIn, sandbox: MakeSandbox
) -> None:
    """The agent is being upgraded: the sandbox lives, it cannot be reached for a moment."""
    sandbox_id = await sandbox()
    await agent.drop()
    await coordinator.wait_state(agent.node_id, "unreachable")
    path = f"/api/v1/sandboxes/{sandbox_id}/exec"
    status, problem = await coordinator.problem("POST", path, json={"argv": ["x"]})
    assert (status, problem["code"]) == (503, "unreachable")
    await agent.link()
    async with coordinator.request("POST", path, json={"argv": ["x"]}) as answer:
        assert answer.status == 200


async def test_a_link_that_breaks_in_an_exec_cuts_the_answer(
    coordinator: Coordinator, agent: StandIn, sandbox: MakeSandbox
) -> None:
    """The agent is killed while a command runs: the client must see that it does not know the end."""
    path = f"/api/v1/sandboxes/{await sandbox()}/exec"
    async with coordinator.request("POST", path, json={"argv": ["wait"]}) as answer:
        await answer.content.readline()
        await agent.drop()
        with pytest.raises(aiohttp.ClientPayloadError):
            await asyncio.wait_for(answer.read(), 5)


async def test_many_requests_at_once_do_not_wait_for_each_other(
    coordinator: Coordinator, agent: StandIn, sandbox: MakeSandbox
) -> None:
    """One slow exec among a hundred quick ones."""
    sandbox_id = await sandbox()

    async def listing() -> int:
        async with coordinator.request("GET", f"/api/v1/sandboxes/{sandbox_id}/files/list?path=/") as answer:
            await answer.read()
            return int(answer.status)

    async with coordinator.request("POST", f"/api/v1/sandboxes/{sandbox_id}/exec", json={"argv": ["wait"]}):
        async with asyncio.timeout(10):
            assert await asyncio.gather(*(listing() for _ in range(100))) == [200] * 100
