"""Every error is a Problem: a code, a sentence, what to do; and bad clients cost a bounded amount."""

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from running import Coordinator, Start


async def _raw(coordinator: Coordinator, data: bytes, *, timeout_s: float = 10.0) -> bytes:
    """Everything that comes back for these bytes until the connection is closed."""
    host, port = coordinator.daemon.api_address.host, coordinator.daemon.api_address.port
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(data)
        async with asyncio.timeout(timeout_s):
            return await reader.read()
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def _problem(answer: bytes) -> Any:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"Content-Type: application/json" in head, answer
    return json.loads(body)


async def test_an_unknown_path_says_where_the_list_is(coordinator: Coordinator) -> None:
    """A typo in a URL."""
    status, problem = await coordinator.problem("GET", "/api/v1/job")
    assert (status, problem["code"]) == (404, "not_found")
    assert "openapi.json" in problem["hint"]
    assert set(problem) == {"code", "message", "hint", "details"}


async def test_a_wrong_method_says_which_are_right(coordinator: Coordinator) -> None:
    """PATCH on a collection."""
    async with coordinator.request("PATCH", "/api/v1/jobs") as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, "GET, POST")
        assert (await answer.json())["code"] == "method_not_allowed"


async def test_a_body_over_the_limit_is_refused_before_it_is_sent(start: Start) -> None:
    """Content-Length tells already."""
    coordinator = await start(body_bytes_max=5000)
    status, problem = await coordinator.problem("POST", "/api/v1/jobs", data=b" " * 6000)
    assert (status, problem["code"]) == (413, "too_large")
    assert "5000 bytes" in problem["message"]


async def test_a_chunked_body_over_the_limit_is_refused_where_it_passes_it(
    start: Start,
) -> None:
    """A client that does not say how much is coming."""
    coordinator = await start(body_bytes_max=5000)

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 1000

    status, problem = await coordinator.problem("POST", "/api/v1/jobs", data=endless())
    assert (status, problem["code"]) == (413, "too_large")


async def test_a_compressed_body_is_refused(coordinator: Coordinator) -> None:
    """A gigabyte of zeros is a megabyte of gzip."""
    body = gzip.compress(b"{}")
    status, problem = await coordinator.problem("POST", "/api/v1/jobs", data=body, headers={"Content-Encoding": "gzip"})
    assert (status, problem["code"]) == (400, "invalid")
    assert "Content-Encoding" in problem["message"]


async def test_a_body_with_a_mistake_names_the_field(coordinator: Coordinator) -> None:
    """The SDK shows key and message to its user."""
    status, problem = await coordinator.problem("POST", "/api/v1/sandboxes", json={"ttl_s": "soon", "coutn": 3})
    assert status == 400
    details = {detail["key"]: detail["message"] for detail in problem["details"]}
    assert details["coutn"] == "unknown key; did you mean `count`?"
    assert "number" in details["ttl_s"]


async def test_a_route_without_a_query_refuses_one(coordinator: Coordinator) -> None:
    """A parameter that is silently ignored would be believed."""
    status, problem = await coordinator.problem("GET", "/api/v1/info?verbose=1")
    assert (status, problem["code"]) == (400, "invalid")


async def test_a_slow_body_is_given_up(coordinator: Coordinator) -> None:
    """A client that announces a body and sends one byte of it holds nothing for ever."""
    head = (
        f"POST /api/v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {coordinator.token}\r\n"
        "Content-Length: 9\r\n\r\n"
    )
    answer = await _raw(coordinator, head.encode() + b"{")
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert _problem(answer)["code"] == "timeout"


async def test_a_slow_head_is_cut(coordinator: Coordinator) -> None:
    """Slowloris: a connection that sends its head byte by byte ends after header_wait_s."""
    host, port = coordinator.daemon.api_address.host, coordinator.daemon.api_address.port
    reader, writer = await asyncio.open_connection(host, port)
    start_s = asyncio.get_running_loop().time()
    with contextlib.suppress(ConnectionError):
        for byte in b"GET /api/v1/health HTTP/1.1\r\nX-Slow: " + b"a" * 1000:
            writer.write(bytes([byte]))
            try:
                async with asyncio.timeout(0.05):
                    assert await reader.read() == b""
                break
            except TimeoutError:
                continue
    assert 1.0 < asyncio.get_running_loop().time() - start_s < 6.0
    writer.close()


async def test_an_idle_connection_is_closed(coordinator: Coordinator) -> None:
    """Thousands of sockets that say nothing do not pile up."""
    assert await _raw(coordinator, b"", timeout_s=6.0) == b""


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64,
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nNo colon\r\n\r\n",
    ],
    ids=["tls", "no-version", "version", "two-lengths", "long-header", "long-target", "many-headers", "no-colon"],
)
async def test_bytes_that_are_no_http_get_a_problem_and_a_closed_connection(
    coordinator: Coordinator, data: bytes
) -> None:
    """A TLS client on the plain port, a fuzzer, a smuggler."""
    answer = await _raw(coordinator, data)
    assert answer.startswith((b"HTTP/1.0 4", b"HTTP/1.1 4"))
    problem = _problem(answer)
    assert len(problem["message"]) < 200
    assert problem["code"] == "invalid"
    assert problem["message"].startswith("This is not a valid HTTP request")
    await coordinator.json("GET", "/api/v1/info")


async def test_an_upgrade_where_there_is_none_is_an_ordinary_answer(coordinator: Coordinator) -> None:
    """A WebSocket client dials the wrong path."""
    headers = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
    async with coordinator.request("GET", "/api/v1/info", headers=headers) as answer:
        assert answer.status == 200
    status, _ = await coordinator.problem("GET", "/api/v1/nothing", headers=headers)
    assert status == 404


async def test_more_connections_than_allowed_are_refused_and_others_go_on(start: Start) -> None:
    """A flood of connections takes no more memory than the bound."""
    coordinator = await start(connections_max=8)
    await coordinator.json("GET", "/api/v1/info")
    host, port = coordinator.daemon.api_address.host, coordinator.daemon.api_address.port
    held = [await asyncio.open_connection(host, port) for _ in range(20)]
    closed = 0
    for reader, _ in held:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                with contextlib.suppress(ConnectionError):
                    await reader.read(1)
                closed += 1
    assert closed >= 13
    await coordinator.json("GET", "/api/v1/info")  # its connection was there before
    for _, writer in held:
        writer.close()


async def test_an_expectation_is_answered_before_the_body_comes(coordinator: Coordinator) -> None:
    """curl sends `Expect: 100-continue` with large bodies and waits; without an answer it loses a second."""
    host, port = coordinator.daemon.api_address.host, coordinator.daemon.api_address.port
    reader, writer = await asyncio.open_connection(host, port)
    head = (
        f"POST /api/v1/tokens HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {coordinator.token}\r\n"
        "Content-Length: 13\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode())
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b'{"name":"ci"}')
    assert (await reader.read()).startswith(b"HTTP/1.1 201 ")
    writer.close()


async def test_an_expectation_of_a_stranger_gets_the_refusal_at_once(coordinator: Coordinator) -> None:
    """The body of somebody without a token is not even asked for."""
    answer = await _raw(
        coordinator, b"POST /api/v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n"
    )
    assert answer.startswith(b"HTTP/1.1 401 ")
