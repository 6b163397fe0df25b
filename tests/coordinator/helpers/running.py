"""A running coordinator as the tests call it: the real daemon on real sockets, and an HTTP client with its token."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
from standin import StandIn, until

from kernpool_coordinator.config import Settings
from kernpool_coordinator.daemon import Daemon


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

    async def lines(self, **body: Any) -> list[Any]:
        """The documents of a bulk create's answer."""
        async with self.request("POST", "/api/v1/sandboxes", json=body) as answer:
            assert answer.status == 200, await answer.text()
            assert answer.headers["Content-Type"] == "application/x-ndjson"
            return [json.loads(line) for line in (await answer.read()).splitlines()]


Start = Callable[..., Awaitable[Coordinator]]
Enrol = Callable[..., Awaitable[StandIn]]
MakeSandbox = Callable[..., Awaitable[str]]
