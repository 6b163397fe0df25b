"""The certificate's life: renewed at half of it over the link, and by proof of the old key once it ended."""

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import pytest

from kernpool_agent import enrol
from kernpool_agent.clock import CoordinatorClock
from kernpool_agent.errors import EnrolRefusedError, LinkRefusedError
from kernpool_agent.renew import Renewal
from kernpool_agent.uplink import Uplink
from kernpool_tls.identity import IdentityPhase
from kernpool_tls.jointoken import parse
from kernpool_tls.keys import NodeKeys

DAY_S = 86400


async def enrolled(coordinator: Any, directory: Path, clock: CoordinatorClock) -> Renewal:
    keys = NodeKeys(directory)
    identity = await enrol.enrol(keys, parse(coordinator.join_token()), coordinator.url, "host-1", timeout_s=10)
    return Renewal(
        keys=keys,
        identity=identity,
        url=coordinator.url,
        uplink=Uplink(),
        clock=clock,
        timeout_s=10,
        rng=random.Random(1),
    )


def clock_at(days: float) -> CoordinatorClock:
    """A coordinator's clock that is so many days ahead."""
    clock = CoordinatorClock()
    clock.learn(time.time() + days * DAY_S)
    return clock


async def test_an_expired_certificate_renews_by_its_key(coordinator: Any, tmp_path: Path) -> None:
    """A laptop that was closed for three days."""
    renewal = await enrolled(coordinator, tmp_path, CoordinatorClock())
    old = renewal.identity
    renewal._clock = clock_at(3)
    coordinator.clock_ahead_s = 3 * DAY_S
    await renewal.client_context()
    assert coordinator.renewed == 1
    assert renewal.identity.serial != old.serial
    assert renewal.identity.node_id == old.node_id


async def test_a_certificate_too_long_over_says_how_to_come_back(coordinator: Any, tmp_path: Path) -> None:
    """A machine from the shelf, two weeks later."""
    renewal = await enrolled(coordinator, tmp_path, clock_at(14))
    with pytest.raises(EnrolRefusedError, match="make a join token bound to it"):
        await renewal.client_context()


async def test_a_removed_node_cannot_renew(coordinator: Any, tmp_path: Path) -> None:
    """`kernpool node rm` while the machine was off."""
    renewal = await enrolled(coordinator, tmp_path, clock_at(2))
    coordinator.clock_ahead_s = 2 * DAY_S
    coordinator.revocations.revoke_node(renewal.identity.node_id)
    with pytest.raises(LinkRefusedError, match="was removed; enrol it again"):
        await renewal.client_context()


async def test_a_fresh_certificate_is_left_alone(coordinator: Any, tmp_path: Path) -> None:
    """Every dial asks; only one of them a day renews."""
    renewal = await enrolled(coordinator, tmp_path, CoordinatorClock())
    await renewal.client_context()
    assert coordinator.renewed == 0
    assert renewal.identity.phase(time.time()) is IdentityPhase.FRESH


async def test_without_a_link_a_due_renewal_waits_and_is_tried_again(coordinator: Any, tmp_path: Path) -> None:
    """Half of the life is over while the coordinator is away: nothing breaks, and nothing spins."""
    renewal = await enrolled(coordinator, tmp_path, clock_at(0.9))
    task = asyncio.create_task(renewal.run())
    await asyncio.wait([task], timeout=0.2)
    assert not task.done()
    assert coordinator.renewed == 0
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
