"""Clients that mean no good, or are broken: the node stays up, and others are served."""

import asyncio
import contextlib
import gzip
import socket
import ssl
from typing import TYPE_CHECKING

import aiohttp
import pytest

from kernpool_agent.dataplane import server
from kernpool_agent.dataplane.listener import Listener, ListenError
from kernpool_mesh.reasons import EndReason
from kernpool_tls.contexts import client_context, data_plane_listener_context
from kernpool_tls.names import node_dns_name

if TYPE_CHECKING:
    from tests.agent.dataplane.conftest import DirectDoor, Door, Node

pytestmark = pytest.mark.asyncio(loop_scope="package")

NODE_ID = "n-abcdefghijkl"


async def connect(direct: "DirectDoor") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(
        "127.0.0.1", direct.port, ssl=direct.tls, server_hostname=node_dns_name(NODE_ID)
    )


async def served(door: "Door") -> bool:
    async with door.request("GET", "/v1/jobs/j-404/0/logs", "job/j-404", ["logs"]) as response:
        return bool(response.status == 404)


async def test_huge_and_many_headers_are_refused(door: "Door") -> None:
    """A megabyte of header, a thousand headers, a line without an end."""
    for headers in ({"X-Large": "x" * 100_000}, {f"X-{n}": "1" for n in range(1000)}):
        async with door.request("GET", "/v1/jobs/j-1/0/logs", "job/j-1", ["logs"], headers=headers) as response:
            assert response.status == 400
    async with door.request("GET", "/v1/" + "x" * 100_000, "job/j-1", ["logs"]) as response:
        assert response.status == 400
    assert await served(door)


async def test_bytes_that_are_no_http_end_the_connection(direct: "DirectDoor") -> None:
    """A scanner."""
    for data in (b"\0\1\2\3" * 1000, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"SSH-2.0-x\r\n", b"\r\n" * 10_000):
        reader, writer = await connect(direct)
        writer.write(data)
        writer.write_eof() if writer.can_write_eof() else None
        answer = await asyncio.wait_for(reader.read(64), 10) if data[:2] != b"\r\n" else b""
        assert answer[:12] in (b"HTTP/1.0 400", b"HTTP/1.1 400", b"HTTP/1.1 404", b"")
        writer.close()
    assert await served(direct)


async def test_request_smuggling_is_refused(direct: "DirectDoor") -> None:
    """Two lengths, a length and chunks: a proxy before us could read another request than we do."""
    for head in (
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Content-Length: +5\r\n",
    ):
        reader, writer = await connect(direct)
        writer.write(b"POST /v1/sandboxes/sb-1/exec HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n0\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(64), 10))[9:12] in (b"400", b"401")
        writer.close()


async def test_a_connection_that_never_finishes_its_request_is_closed(
    node: "Node", direct: "DirectDoor", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slow loris: half a head, or nothing at all."""
    runner_kwargs = node.server._runner.server._kwargs  # type: ignore[union-attr]
    monkeypatch.setitem(runner_kwargs, "keepalive_timeout", 0.3)
    for data in (b"", b"GET /v1/jobs/j-1/0/logs HT"):
        reader, writer = await connect(direct)
        writer.write(data)
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
    assert server.KEEPALIVE_S == 75.0


async def test_a_client_that_speaks_no_tls_gets_nothing(direct: "DirectDoor") -> None:
    """Plain HTTP, and a client that trusts other authorities or wants an older protocol."""
    reader, writer = await asyncio.open_connection("127.0.0.1", direct.port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"HTTP" not in await asyncio.wait_for(reader.read(), 20)
    writer.close()
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    for context in (ssl.create_default_context(), old):
        with pytest.raises(OSError, match=r"certificate|alert|reset|^$"):
            await asyncio.open_connection("127.0.0.1", direct.port, ssl=context, server_hostname=node_dns_name(NODE_ID))
    with pytest.raises(ssl.SSLCertVerificationError):
        await asyncio.open_connection(
            "127.0.0.1", direct.port, ssl=direct.tls, server_hostname=node_dns_name("n-other0000000")
        )


async def test_vanished_clients_are_looked_for(node: "Node", direct: "DirectDoor") -> None:
    """A client whose machine lost power sends no FIN: the kernel asks, and gives the connection up."""
    connections = node.server._runner.server.connections  # type: ignore[union-attr]
    async with direct.request("GET", "/v1/jobs/j-404/0/logs", "job/j-404", ["logs"]):
        sockets = [connection.transport.get_extra_info("socket") for connection in connections if connection.transport]
        options = [
            (
                sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
                sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
                sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
            )
            for sock in sockets
            if sock is not None
        ]
    assert (1, 30, 60_000) in options


async def test_a_renewed_certificate_is_shown_and_standing_connections_stay(node: "Node") -> None:
    """Every 12 hours."""
    context = data_plane_listener_context(node.trust.identity_file)
    listener = await Listener.open(node.server, context, ["127.0.0.1"], 0)
    ca_pem = node.trust.authority.certificate_pem

    async def connection() -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", listener.port, ssl=client_context(ca_pem), server_hostname=node_dns_name(NODE_ID)
        )
        return reader, writer, writer.get_extra_info("ssl_object").getpeercert(binary_form=True)

    reader, writer, before = await connection()
    node.trust.issue()
    listener.reload(node.trust.identity_file)
    _, other, after = await connection()
    assert before != after
    writer.write(b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await asyncio.wait_for(reader.readline(), 10)) == b"HTTP/1.1 404 Not Found\r\n"
    writer.close()
    other.close()
    await listener.close()


async def test_a_port_in_use_is_told(node: "Node", direct: "DirectDoor") -> None:
    """Two agents on one machine with the same configuration."""
    context = data_plane_listener_context(node.trust.identity_file)
    with pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1 port {direct.port} .*Address already in use"):
        await Listener.open(node.server, context, ["127.0.0.1"], direct.port)
    with pytest.raises(ListenError, match=r"cannot listen on 192\.0\.2\.1"):
        await Listener.open(node.server, context, ["192.0.2.1"], 0)


async def test_requests_beyond_the_limit_are_told_to_come_again(door: "Door", node: "Node") -> None:
    """A client with a leak opens hundreds of followers; another job is still served."""
    job_id = await node.job("echo up; sleep 1000")
    path = f"/v1/jobs/{job_id}/0/logs?follow=1"
    holding = [await door.request("GET", path, f"job/{job_id}", ["logs"]) for _ in range(300)]
    async with door.request("GET", path, f"job/{job_id}", ["logs"]) as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "1")
        assert (await response.json(content_type=None))["code"] == "busy"
    assert await served(door)
    for response in holding:
        response.close()
    async with asyncio.timeout(20):
        while True:
            async with door.request("GET", path, f"job/{job_id}", ["logs"]) as response:
                if response.status == 200:
                    break
    await node.jobs.stop(job_id, 0, 1, EndReason.CANCELLED, 0.0)


async def test_a_compressed_body_does_not_grow_without_bound(door: "Door") -> None:
    """A zip bomb as an exec body."""
    bomb = gzip.compress(b" " * (64 << 20))
    headers = {"Content-Encoding": "gzip"}
    with contextlib.suppress(aiohttp.ClientConnectionError):
        async with door.request(
            "POST", "/v1/sandboxes/sb-1/exec", "sandbox/sb-1", ["exec"], data=bomb, headers=headers
        ) as response:
            assert response.status == 400
    assert await served(door)
