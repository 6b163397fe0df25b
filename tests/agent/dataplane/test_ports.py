"""TCP connections into a sandbox that has no network, through both doors."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import pytest_asyncio

from kernpool_mesh.messages import Command

if TYPE_CHECKING:
    from kernpool_sandbox.runner import Process
    from tests.agent.dataplane.conftest import Door, Node

pytestmark = [
    pytest.mark.asyncio(loop_scope="package"),
    pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="the server inside is /usr/bin/python3"),
]

SERVER = """
import asyncio, socket
async def serve(reader, writer):
    first = await reader.read(1)
    if first == b"e":    # echo until the client ends, then one word more
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write(b"bye")
    elif first == b"s":  # send much, then end
        for _ in range(64):
            writer.write(bytes(range(256)) * 4096)
            await writer.drain()
    elif first == b"r":  # break
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes((1, 0, 0, 0, 0, 0, 0, 0)))
        writer.transport.abort()
        return
    writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 8000, backlog=256)
    print("up", flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def sandbox(node: "Node") -> str:
    sandbox_id = await node.sandbox()
    server: Process = await node.runtime.exec(sandbox_id, Command(["/usr/bin/python3", "-c", SERVER]), stdin=False)
    assert await asyncio.wait_for(server.stdout.read(), 20) == b"up\n"
    return sandbox_id


def port(door: "Door", sandbox: str, number: int | str = 8000) -> Any:
    return door.websocket(f"/v1/sandboxes/{sandbox}/ports/{number}", f"sandbox/{sandbox}", ["connect"], autoclose=False)


async def rest(websocket: aiohttp.ClientWebSocketResponse) -> tuple[bytes, int | None]:
    """Takes everything until the close; returns (bytes, close code)."""
    parts = []
    async with asyncio.timeout(30):
        while (message := await websocket.receive()).type is aiohttp.WSMsgType.BINARY:
            parts.append(message.data)
    return b"".join(parts), message.data if message.type is aiohttp.WSMsgType.CLOSE else None


async def test_bytes_go_both_ways_and_each_direction_ends_by_itself(door: "Door", sandbox: str) -> None:
    """A request, an answer, and a half-close in between."""
    async with port(door, sandbox) as websocket:
        await websocket.send_bytes(b"ehello")
        assert await asyncio.wait_for(websocket.receive_bytes(), 10) == b"hello"
        await websocket.send_bytes(b"")
        assert await rest(websocket) == (b"bye", aiohttp.WSCloseCode.OK)


async def test_much_data_comes_whole(door: "Door", sandbox: str) -> None:
    """64 MiB from inside, to a client that ends its direction first."""
    async with port(door, sandbox) as websocket:
        await websocket.send_bytes(b"s")
        await websocket.send_bytes(b"")
        data, code = await rest(websocket)
    assert code == aiohttp.WSCloseCode.OK
    assert data == bytes(range(256)) * 4096 * 64


async def test_a_connection_that_breaks_inside_is_told_by_the_close_code(door: "Door", sandbox: str) -> None:
    """The server inside crashes."""
    async with port(door, sandbox) as websocket:
        await websocket.send_bytes(b"r")
        _data, code = await rest(websocket)
    assert code == aiohttp.WSCloseCode.INTERNAL_ERROR


async def test_nobody_listens_there(door: "Door", sandbox: str) -> None:
    """The server is not up yet: an HTTP error before the upgrade, with a hint."""
    for number, status in (("1", 502), ("0", 400), ("65536", 400), ("http", 400), ("-1", 400)):
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await port(door, sandbox, number)
        assert caught.value.status == status


async def test_an_ordinary_request_is_told_to_upgrade(door: "Door", sandbox: str) -> None:
    """A browser's address bar."""
    async with door.request(
        "GET", f"/v1/sandboxes/{sandbox}/ports/8000", f"sandbox/{sandbox}", ["connect"]
    ) as response:
        assert response.status == 400
        assert "Upgrade" in (await response.json(content_type=None))["message"]


async def test_a_hundred_connections_at_once(door: "Door", sandbox: str) -> None:
    """A browser opens a page with many parts."""

    async def one(n: int) -> bytes:
        async with port(door, sandbox) as websocket:
            await websocket.send_bytes(b"e%d" % n)
            await websocket.send_bytes(b"")
            return (await rest(websocket))[0]

    assert await asyncio.gather(*(one(n) for n in range(100))) == [b"%dbye" % n for n in range(100)]


async def test_a_client_that_leaves_closes_the_connection_inside(door: "Door", sandbox: str, node: "Node") -> None:
    """No connection is left inside when the browser is closed."""
    for _ in range(5):
        websocket = await port(door, sandbox)
        await websocket.send_bytes(b"ehello")
        await websocket.receive_bytes()
        websocket._response.connection.transport.abort()
    script = "grep -c ' 01 ' /proc/net/tcp || true"
    async with asyncio.timeout(20):
        while int((await node.runtime.run(sandbox, Command(["sh", "-c", script]))).stdout):
            pass
