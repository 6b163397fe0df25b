"""A real coordinator on real sockets, and small real agents that enrol and link over mutual TLS."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvloop
from running import Coordinator, Enrol, MakeSandbox, Start
from standin import StandIn

from kernpool_coordinator.config import Settings
from kernpool_coordinator.daemon import Daemon


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
async def start(settings: Settings) -> AsyncIterator[Start]:
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
async def coordinator(start: Start) -> Coordinator:
    return await start()


@pytest.fixture
async def enrol(coordinator: Coordinator, tmp_path: Path) -> AsyncIterator[Enrol]:
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
async def agent(coordinator: Coordinator, enrol: Enrol) -> StandIn:
    """One enrolled and linked agent."""
    agent = await enrol()
    await agent.link()
    await coordinator.wait_state(agent.node_id, "ready")
    return agent


@pytest.fixture
def sandbox(coordinator: Coordinator, agent: StandIn) -> MakeSandbox:
    """Creates one sandbox; its id."""

    async def create(**body: Any) -> str:
        lines = await coordinator.lines(count=1, **body)
        return str(lines[0]["id"])

    return create
