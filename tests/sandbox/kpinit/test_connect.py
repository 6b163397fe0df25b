"""TCP connections are made inside the sandbox's own network and handed out as descriptors."""

import asyncio
import os
from typing import Any

import pytest

from kernpool_sandbox.kpinit.plan import ExecSpec

SERVER = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
server = socket.create_server((sys.argv[1], 0), family=family)
print(server.getsockname()[1], flush=True)
while True:
    conn, _ = server.accept()
    conn.sendall(conn.recv(100).upper())
    conn.close()
"""


async def serve(box: Any, address: str) -> int:
    started = await box.client.exec(ExecSpec(1, ("/usr/bin/python3", "-c", SERVER, address)))
    os.close(started.stderr_fd)
    while True:
        try:
            line = os.read(started.stdout_fd, 100)
        except BlockingIOError:
            await asyncio.sleep(0)
            continue
        os.close(started.stdout_fd)
        if not line:
            pytest.skip("this machine's /usr has no python3 for the server")
        return int(line)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_a_port_inside_is_reached_without_any_network(node: Any, address: str) -> None:
    """A web server under test is reachable although the sandbox has no network."""
    box = await node.box()
    port = await serve(box, address)
    loop = asyncio.get_running_loop()
    for _ in range(3):
        with await box.client.connect(port, address) as sock:
            await loop.sock_sendall(sock, b"hello")
            assert await loop.sock_recv(sock, 100) == b"HELLO"


async def test_a_closed_port_is_refused(node: Any) -> None:
    """Nobody listens: the client hears that, and does not wait."""
    box = await node.box()
    with pytest.raises(ConnectionRefusedError):
        await box.client.connect(1)


async def test_there_is_no_way_out(node: Any) -> None:
    """The sandbox has its loopback and nothing else."""
    box = await node.box()
    with pytest.raises(OSError, match="unreachable"):
        await box.client.connect(80, "192.0.2.1")
    for bad in ("example.org", "", "127.0.0.1:80"):
        with pytest.raises(OSError, match="Invalid"):
            await box.client.connect(80, bad)
    for port in (0, 65536, -1):
        with pytest.raises(OSError, match="Invalid"):
            await box.client.connect(port)
