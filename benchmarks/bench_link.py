"""What a link costs: messages, HTTP and WebSockets inside streams, through mutual TLS on loopback, two processes.

    python benchmarks/bench_link.py [ROUNDS]

One process is the coordinator's end, its child the agent's; both run uvloop.
"""

import asyncio
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import uvloop
from aiohttp import web

from kernpool_mesh.codec import decode, encode
from kernpool_mesh.connector import LinkConnector
from kernpool_mesh.link import Link, Side
from kernpool_mesh.messages import Heartbeat, HeartbeatAck, Message, Resources, StreamData
from kernpool_mesh.transport import serve_stream
from kernpool_mesh.websocket import connect_websocket, server_websocket
from kernpool_tls.authority import Authority
from kernpool_tls.contexts import client_context, node_listener_context
from kernpool_tls.keys import NodeKeys
from kernpool_tls.names import COORDINATOR_DNS_NAME
from kernpool_tls.sealing import Sealer

BODY_BYTES = 200 << 20
CHUNK = b"x" * 65536


async def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        await measure(Path(name), rounds)


async def measure(directory: Path, rounds: int) -> None:
    authority = Authority.open(directory / "ca", Sealer.from_file(directory / "key"), "kp-bench", time.time())
    authority.sign_server("c-1", [], directory / "server.pem", time.time())
    keys = NodeKeys(directory / "node")
    issued = authority.sign_node(await keys.new_request(), "n-bench", time.time())
    await keys.accept(issued.certificate_pem, authority.certificate_pem, authority.pin)

    over = asyncio.Event()

    async def accept(request: web.Request) -> web.WebSocketResponse:
        websocket = server_websocket()
        await websocket.prepare(request)
        try:
            await drive(Link(websocket, Side.COORDINATOR), rounds)
        finally:
            over.set()
        return websocket

    app = web.Application()
    app.router.add_get("/node/v1/link", accept)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    context = node_listener_context(directory / "server.pem", authority.certificate_pem)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    command = (sys.executable, __file__, "--agent", str(runner.addresses[0][1]), str(directory / "node"))
    agent = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE)
    await over.wait()
    await agent.wait()
    await runner.cleanup()


async def drive(link: Link, rounds: int) -> None:
    """The coordinator's end: asks, and prints the table."""
    acks: asyncio.Queue[Message] = asyncio.Queue()
    running = asyncio.create_task(link.run(acks.put_nowait))
    connector = LinkConnector(link)
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, uvloop, TLS 1.3, two processes")
    print_codec()

    async def beat() -> None:
        await link.send(HeartbeatAck(1, 1.0))
        await acks.get()

    print_latency("message there and back", await timed(beat, rounds))
    async with aiohttp.ClientSession(connector=connector) as session:
        await drive_http(session, connector, rounds)
    await link.close("measured")
    await running


async def drive_http(session: aiohttp.ClientSession, connector: LinkConnector, rounds: int) -> None:
    async def ask(object_: str = "sandbox/sb-0") -> None:
        async with session.get(connector.url("ann", object_, ["read"], "/hello")) as response:
            await response.read()

    numbers = iter(range(1 << 30))
    print_latency("HTTP request, kept-alive stream", await timed(ask, rounds))
    print_latency("HTTP request, new stream", await timed(lambda: ask(f"sandbox/new-{next(numbers)}"), rounds))
    started = time.perf_counter()
    await asyncio.gather(*(ask(f"sandbox/many-{number}") for number in range(240)))
    print(f"{'240 HTTP requests at once':<34}{(time.perf_counter() - started) * 1e3:>9.1f} ms in all")

    def url(path: str) -> str:
        return str(connector.url("ann", "sandbox/sb-0", ["read"], path))

    async with session.ws_connect(url("/talk")) as websocket:

        async def talk() -> None:
            await websocket.send_bytes(b"x")
            await websocket.receive_bytes()

        print_latency("WebSocket frame there and back", await timed(talk, rounds))
    started = time.perf_counter()
    async with session.get(url("/give")) as response:
        async for _chunk in response.content.iter_any():
            pass
    print_throughput("download through a stream", started)
    started = time.perf_counter()
    async with session.put(url("/take"), data=body()) as response:
        await response.read()
    print_throughput("upload through a stream", started)


async def body() -> AsyncIterator[bytes]:
    for _ in range(BODY_BYTES // len(CHUNK)):
        yield CHUNK


async def timed(action: Callable[[], Awaitable[None]], rounds: int) -> list[float]:
    """Seconds of each round, after a tenth of them to warm up."""
    for _ in range(rounds // 10):
        await action()
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        await action()
        seconds.append(time.perf_counter() - started)
    return seconds


def print_latency(name: str, seconds: list[float]) -> None:
    percentiles = statistics.quantiles(seconds, n=100)
    print(f"{name:<34}{percentiles[49] * 1e3:>9.3f} ms p50{percentiles[98] * 1e3:>9.3f} ms p99")


def print_throughput(name: str, started: float) -> None:
    print(f"{name:<34}{BODY_BYTES / (time.perf_counter() - started) / 2**20:>9.0f} MiB/s")


def print_codec() -> None:
    for message in (Heartbeat(1, Resources(1, 2, 3, 4)), StreamData(2, b"x" * 16_000)):
        data = encode(message)
        started = time.perf_counter()
        for _ in range(20_000):
            decode(encode(message))
        microseconds = (time.perf_counter() - started) / 20_000 * 1e6
        print(f"{f'{type(message).__name__} of {len(data)} bytes, codec':<34}{microseconds:>9.1f} us there and back")


async def agent(port: int, directory: Path) -> None:
    """The agent's end: answers."""

    async def hello(_request: web.Request) -> web.Response:
        return web.Response(body=b"hello")

    async def give(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(BODY_BYTES // len(CHUNK)):
            await response.write(CHUNK)
        return response

    async def take(request: web.Request) -> web.Response:
        async for _chunk in request.content.iter_any():
            pass
        return web.Response()

    async def talk(request: web.Request) -> web.WebSocketResponse:
        websocket = web.WebSocketResponse()
        await websocket.prepare(request)
        async for frame in websocket:
            await websocket.send_bytes(frame.data)
        return websocket

    app = web.Application(client_max_size=1 << 40)
    app.add_routes([web.get("/hello", hello), web.get("/give", give), web.put("/take", take), web.get("/talk", talk)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    server = runner.server
    assert server is not None
    keys = NodeKeys(directory)
    identity = keys.identity()
    assert identity is not None
    context = client_context(identity.ca_pem, keys.identity_file)
    async with aiohttp.ClientSession() as session:
        url = f"https://127.0.0.1:{port}/node/v1/link"
        name = COORDINATOR_DNS_NAME
        link = Link(await connect_websocket(session, url, ssl_context=context, server_hostname=name), Side.AGENT)
        link.on_stream(lambda stream: serve_stream(stream, server))
        beat = Heartbeat(1, Resources(1, 2, 3, 4))
        await link.run(lambda _message: link.send_nowait(beat))
        await link.close()
    await runner.cleanup()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--agent"]:
        uvloop.run(agent(int(sys.argv[2]), Path(sys.argv[3])))
    else:
        uvloop.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000))
