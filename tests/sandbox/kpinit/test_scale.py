"""Many sandboxes at once on one spawner."""

import asyncio
import resource
from typing import Any

import pytest

COUNT = 1000


@pytest.mark.full
@pytest.mark.timeout(300)
async def test_a_thousand_sandboxes_live_listed_and_end(node: Any) -> None:
    """Pages of the list, descriptors and sockets hold for more than any machine is asked for at once."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard < 4 * COUNT:
        pytest.skip(f"needs {4 * COUNT} open files, the limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    await node.client.define_template("many", node.plan().ops)
    names = [node.new_id() for _ in range(COUNT)]

    async def one(number: int, name: str) -> None:
        ids = {"uid_map_start": 0x50000000 + 65536 * (number % 1000), "uid_map_count": 65536} if node.privileged else {}
        plan = node.plan(ops=(), **ids)
        await node.attach(name, await node.client.spawn(name, plan, template="many"))

    await asyncio.gather(*(one(number, name) for number, name in enumerate(names)))
    assert sorted(child.id for child in await node.client.list()) == sorted(names)
    await asyncio.gather(*(box.client.ping() for box in node.boxes))
    await asyncio.gather(*(node.client.kill(name) for name in names))
    # The list is the truth: an event is a hint, dropped when its reader is too slow for a thousand at once.
    async with asyncio.timeout(60):
        while await node.client.list():
            pass
