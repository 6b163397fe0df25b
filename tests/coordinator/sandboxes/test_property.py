"""Seeded lives of sandboxes: creates, removals, cuts, restarts of agents and coordinator; every id gets its answer."""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from kernpool.bodies import CommandBody, CreateSandboxesBody, RemoveSandboxesBody
from kernpool_coordinator.errors import CoordinatorError
from kernpool_coordinator.simulation import SimAgent, SimLink
from kernpool_mesh.reasons import EndReason


class Life:
    """One seed's story."""

    def __init__(self, stage: Any, seed: int) -> None:
        self.stage, self.rng = stage, random.Random(seed)
        self.agents = [SimAgent(f"n-{number}") for number in range(self.rng.randint(1, 3))]
        self.links: dict[str, SimLink] = {}
        self.creating: list[asyncio.Task[None]] = []
        self.errors: set[str] = set()
        """Ids of creates without a key that were answered by an error: they may not stay."""
        self.bodies: list[CreateSandboxesBody] = []
        """Requests with a key."""

    def new_body(self) -> CreateSandboxesBody:
        """A new request, or one of those with a key once more."""
        if self.bodies and self.rng.random() < 0.3:
            return self.rng.choice(self.bodies)
        body = CreateSandboxesBody(
            count=self.rng.randint(1, 30),
            command=self.rng.choice([None, CommandBody(argv=["true"])]),
            remove_after=self.rng.random() < 0.2,
            idempotency_key=f"k{self.rng.random()}" if self.rng.random() < 0.3 else None,
        )
        if body.idempotency_key:
            self.bodies.append(body)
        return body

    async def create(self) -> None:
        body = self.new_body()
        try:
            batches = self.stage.plane.create_sandboxes(self.stage.ann, body)
        except CoordinatorError:
            return
        last: Counter[str] = Counter()
        total: dict[str, Any] = {}
        async for batch in batches:
            for item in batch:
                if "done" in item:
                    total = item
                elif item["error"] or item["result"] or body.command is None:
                    last[item["id"]] += 1
                    if item["error"] and not body.idempotency_key:
                        self.errors.add(item["id"])
        assert len(last) == body.count, "an id without an answer"
        assert set(last.values()) == {1}, "an id with two last answers"
        assert total["created"] + total["failed"] == body.count

    def step(self) -> None:
        match self.rng.randrange(8):
            case 0 | 1 | 2:
                self.creating.append(asyncio.ensure_future(self.create()))
            case 3:
                self.cut(self.rng.choice(self.agents))
            case 4:
                for agent in self.agents:
                    self.connect(agent)
            case 5:
                agent = self.rng.choice(self.agents)
                agent.holds_creates = not agent.holds_creates
                self.say(agent, agent.answer_creates())
            case 6:
                agent = self.rng.choice(self.agents)
                if agent.sandboxes:
                    self.say(agent, agent.end_sandbox(self.rng.choice(list(agent.sandboxes)), EndReason.TTL))
            case 7:
                self.creating.append(asyncio.ensure_future(self.remove()))

    async def remove(self) -> None:
        known = list(self.stage.plane._rooms.sandboxes.book.sandboxes)
        chosen = self.rng.sample(known, min(len(known), 5))
        if chosen:
            await self.stage.plane.remove_sandboxes(self.stage.ann, RemoveSandboxesBody(ids=chosen))

    def connect(self, agent: SimAgent) -> None:
        if agent.node_id not in self.links:
            self.links[agent.node_id] = SimLink.connect(self.stage.plane, agent)

    def cut(self, agent: SimAgent) -> None:
        link = self.links.pop(agent.node_id, None)
        if link is not None:
            link.cut()
            agent.restart()

    def say(self, agent: SimAgent, messages: Any) -> None:
        link = self.links.get(agent.node_id)
        if link is not None:
            link.tell(messages)

    async def rest(self) -> None:
        """All faults stop; what was asked comes to its end."""
        for agent in self.agents:
            self.connect(agent)
            agent.holds_creates = False
            self.say(agent, agent.answer_creates())
        await self.stage.pass_time(200, beating=tuple(self.links.values()))
        await asyncio.gather(*self.creating)
        await self.stage.settled()

    def check(self) -> None:
        book = self.stage.plane._rooms.sandboxes.book
        there = {name: agent.node_id for agent in self.agents for name in agent.sandboxes}
        assert all(number == 1 for agent in self.agents for number in agent.created.values())
        assert all(number == 1 for agent in self.agents for number in agent.runs.values())
        ours = {one.id: one.node_id for one in book.sandboxes.values() if one.alive}
        assert ours == there
        assert not self.errors & there.keys(), "told as failed, and yet there"
        assert not [one for one in book.sandboxes.values() if one.doomed]
        assert book.alive == len(ours)
        assert {name for held in book.on_node.values() for name in held} == set(ours)


async def live_through(stage: Any, seed: int) -> None:
    await stage.open(create_timeout_s=60.0, reply_timeout_s=30.0)
    life = Life(stage, seed)
    for agent in life.agents:
        life.connect(agent)
    for _ in range(60):
        life.step()
        for _ in range(life.rng.randrange(4)):
            await asyncio.sleep(0)
        if life.rng.random() < 0.1:
            await stage.pass_time(life.rng.random() * 10, beating=tuple(life.links.values()))
    await life.rest()
    life.check()
    # A new coordinator knows the same from its store and its nodes.
    life.links.clear()
    await stage.reopen()
    for agent in life.agents:
        life.connect(agent)
    await life.rest()
    life.check()


@pytest.mark.parametrize("seed", range(25))
async def test_every_sandbox_is_accounted_for(stage: Any, seed: int) -> None:
    await live_through(stage, seed)


@pytest.mark.full
@pytest.mark.timeout(1200)
async def test_many_more_lives(stage: Any) -> None:
    for seed in range(1000, 1400):
        await live_through(stage, seed)
        await stage.planes.pop().close()
        for path in stage.state_dir.glob("kernpool.db*"):
            path.unlink()
