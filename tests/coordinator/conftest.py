"""A control plane with a real store, and agents in memory."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, final

import pytest

from kernpool.bodies import SubmitJob
from kernpool_coordinator.core.config import CoreConfig
from kernpool_coordinator.core.control import ControlPlane
from kernpool_coordinator.simulation import ManualClock, SimAgent, SimLink
from kernpool_coordinator.tokens.actor import Actor, Role

DEADLINE_S = 10.0
POLL_S = 0.001


@final
class Stage:
    """One coordinator on one state directory: opened, crashed, opened again."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.clock = ManualClock()
        self.ann = Actor("ann", Role.ADMIN, "default")
        self.bob = Actor("bob", Role.USER, "default")
        self.eve = Actor("eve", Role.USER, "elsewhere")
        self.planes: list[ControlPlane] = []

    @property
    def plane(self) -> ControlPlane:
        return self.planes[-1]

    async def open(self, **config: Any) -> ControlPlane:
        """Open a coordinator; an earlier one is as good as killed: nobody calls it any more."""
        plane = await ControlPlane.open(CoreConfig(state_dir=self.state_dir, **config), self.clock)
        self.planes.append(plane)
        return plane

    async def reopen(self, **config: Any) -> ControlPlane:
        """The coordinator stops and a new one starts on its store."""
        await self.planes.pop().close()
        return await self.open(**config)

    async def join(self, agent: SimAgent) -> SimLink:
        """Link an agent and wait until work may come."""
        link = SimLink.connect(self.plane, agent)
        await self.until(lambda: self.state_of_room(agent.node_id))
        return link

    def state_of_room(self, node_id: str) -> bool:
        rooms = self.plane._rooms.scheduler.rooms
        return node_id in rooms and rooms[node_id].open

    async def launch(self, run: str = "echo hi", **fields: Any) -> str:
        """Submit a job as ann; gives its id."""
        body = {key: fields.pop(key) for key in ("cluster", "must_exist", "idempotency_key") if key in fields}
        answer = await self.plane.submit_job(self.ann, SubmitJob(task={"run": run, **fields}, **body))
        return str(answer["id"])

    async def job(self, job_id: str) -> dict[str, Any]:
        return await self.plane.job(self.ann, job_id)

    async def state(self, job_id: str) -> str:
        return str((await self.job(job_id))["state"])

    async def until(self, condition: Callable[[], Any | Awaitable[Any]]) -> Any:
        """Wait for a condition; the deadline is real time."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                found = condition()
                if asyncio.iscoroutine(found):
                    found = await found
                if found:
                    return found
                await asyncio.sleep(POLL_S)

    async def until_state(self, job_id: str, *states: str) -> dict[str, Any]:
        async def there() -> bool:
            return await self.state(job_id) in states

        await self.until(there)
        return await self.job(job_id)

    async def pass_time(self, seconds: float, *, beating: tuple[SimLink, ...] = ()) -> None:
        """Let virtual time pass in steps, with heartbeats of those links that are healthy."""
        left = seconds
        while left > 0:
            step = min(1.0, left)
            left -= step
            self.clock.advance(step)
            for link in beating:
                link.tell([link.agent.heartbeat(1)])
            self.plane.tick()
            await asyncio.sleep(0)

    async def settled(self) -> None:
        """Wait until the store has all that was queued."""
        await self.until(lambda: self.plane._rooms.store.statistics().waiting == 0)
        await self.plane._rooms.store.write([])


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(tmp_path / "coordinator")
    yield stage
    for plane in reversed(stage.planes):
        await plane.close()
