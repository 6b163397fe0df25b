"""A real coordinator on real sockets, and small real agents that enrol and link over mutual TLS."""

import asyncio
import contextlib
import json
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvloop

from kernpool_coordinator.config import Settings
from kernpool_coordinator.daemon import Daemon

sys.path.insert(0, str(Path(__file__).parent))  # the stand-in agent is a module of these tests

from standin import StandIn, until


class Coordinator:
    """The daemon and an HTTP client with its admin token."""

    def __init__(self, daemon: Daemon, settings: Settings, session: aiohttp.ClientSession) -> None:
        self.daemon = daemon
        self.settings = settings
        self.session = session
        self.url = daemon.api_url
        self.node_url = daemon.node_url
        self.state_dir = Path(settings.state_dir)
        self.token = (self.state_dir / "admin-token").read_text().strip()
        self.ca_pem = daemon.api.ca_pem

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def request(self, method: str, path: str, **options: Any) -> Any:
        headers = {**self.headers, **options.pop("headers", {})}
        return self.session.request(method, self.url + path, headers=headers, **options)

    async def json(self, method: str, path: str, **options: Any) -> Any:
        """The document of a good answer."""
        async with self.request(method, path, **options) as answer:
            assert answer.status < 300, await answer.text()
            return await answer.json() if answer.status != 204 else None

    async def problem(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        """Status and Problem of a bad answer."""
        async with self.request(method, path, **options) as answer:
            assert answer.status >= 400, await answer.text()
            return answer.status, await answer.json()

    async def join_token(self, **request: Any) -> str:
        return str((await self.json("POST", "/api/v1/join-tokens", json=request))["token"])

    async def wait_state(self, node_id: str, state: str) -> None:
        async def reached() -> bool:
            return bool((await self.json("GET", f"/api/v1/nodes/{node_id}"))["state"] == state)

        await until(reached, f"node {node_id} is {state}", 15.0)

    async def wait_job(self, job_id: str, state: str) -> None:
        async def reached() -> bool:
            return bool((await self.json("GET", f"/api/v1/jobs/{job_id}"))["state"] == state)

        await until(reached, f"{job_id} is {state}")


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The coordinator's own kind of event loop."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Free ports, short intervals."""
    return Settings(
        state_dir=str(tmp_path / "coordinator"),
        api_listen="127.0.0.1:0",
        node_listen="127.0.0.1:0",
        heartbeat_interval_s=0.2,
        suspect_after_s=1.5,
        unreachable_after_s=2.0,
        shutdown_s=0.5,
        greeting_s=2.0,
        body_wait_s=1.0,
        header_wait_s=1.5,
        log_reconnect_s=5.0,
        join_tries_per_min=10_000,
    )


@pytest.fixture
async def start(settings: Settings) -> AsyncIterator[Callable[..., Awaitable[Coordinator]]]:
    """Starts coordinators; with other settings by keyword."""
    async with contextlib.AsyncExitStack() as stack:

        async def begin(**changes: Any) -> Coordinator:
            changed = Settings(**{**{name: getattr(settings, name) for name in settings.__slots__}, **changes})
            daemon = await Daemon.open(changed)
            stack.push_async_callback(daemon.close)
            tls = ssl.create_default_context(cadata=daemon.api.ca_pem)
            session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls, limit=0))
            await stack.enter_async_context(session)
            return Coordinator(daemon, changed, session)

        yield begin


@pytest.fixture
async def coordinator(start: Callable[..., Awaitable[Coordinator]]) -> Coordinator:
    return await start()


@pytest.fixture
async def enrol(coordinator: Coordinator, tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[StandIn]]]:
    """Enrols agents; they are not linked yet."""
    agents: list[StandIn] = []

    async def begin(hostname: str = "alpha") -> StandIn:
        token = await coordinator.join_token()
        agent = await StandIn.enrol(coordinator.node_url, token, coordinator.ca_pem, tmp_path, hostname=hostname)
        agents.append(agent)
        return agent

    yield begin
    for agent in agents:
        await agent.close()


@pytest.fixture
async def agent(coordinator: Coordinator, enrol: Callable[..., Awaitable[StandIn]]) -> StandIn:
    """One enrolled and linked agent."""
    agent = await enrol()
    await agent.link()
    await coordinator.wait_state(agent.node_id, "ready")
    return agent


@pytest.fixture
def sandbox(coordinator: Coordinator, agent: StandIn) -> Callable[..., Awaitable[str]]:
    """Creates one sandbox; its id."""

    async def create(**body: Any) -> str:
        lines = await read_lines(coordinator, {"count": 1, **body})
        return str(lines[0]["id"])

    return create


async def read_lines(coordinator: Coordinator, body: dict[str, Any]) -> list[Any]:
    """The documents of a bulk answer."""
    async with coordinator.request("POST", "/api/v1/sandboxes", json=body) as answer:
        assert answer.status == 200, await answer.text()
        return [json.loads(line) for line in (await answer.read()).splitlines()]
