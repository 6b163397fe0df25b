"""The link to a coordinator: greeted, kept alive, lost and found again."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kernpool_agent import enrol
from kernpool_agent.backoff import Backoff
from kernpool_agent.clock import CoordinatorClock
from kernpool_agent.connection import Connection, Pulse
from kernpool_agent.renew import Renewal
from kernpool_agent.uplink import Uplink
from kernpool_mesh import messages as m
from kernpool_mesh.stream import LinkStream
from kernpool_tls.jointoken import parse
from kernpool_tls.keys import NodeKeys
from kernpool_tls.names import COORDINATOR_DNS_NAME


class SmallHost:
    """A node with nothing on it."""

    def __init__(self, node_id: str, uplink: Uplink) -> None:
        self.node_id = node_id
        self.uplink = uplink
        self.messages: list[m.Message] = []
        self.got = asyncio.Event()

    def hello(self) -> m.Hello:
        return m.Hello(1, 1, self.node_id, 1, "boot", "0.1.0")

    def heartbeat(self, seq: int) -> m.Heartbeat:
        return m.Heartbeat(seq, m.Resources())

    def on_linked(self, welcome: m.Welcome) -> None:
        self.uplink.tell(m.Snapshot([], []))

    def on_message(self, message: m.Message) -> None:
        self.messages.append(message)
        self.got.set()

    def on_stream(self, stream: LinkStream) -> None:
        stream.reset("nothing here")


class Member:
    """An enrolled agent that keeps its link."""

    def __init__(self, coordinator: Any, keys: NodeKeys, identity: Any) -> None:
        self.uplink = Uplink()
        self.clock = CoordinatorClock()
        self.host = SmallHost(identity.node_id, self.uplink)
        self.renewal = Renewal(
            keys=keys,
            identity=identity,
            url=coordinator.url,
            uplink=self.uplink,
            clock=self.clock,
            timeout_s=10,
        )
        self.connection = Connection(
            url=coordinator.url,
            tls=self.renewal.client_context,
            host=self.host,
            uplink=self.uplink,
            clock=self.clock,
            backoff=Backoff(0.01, 0.05, random.Random(1)),
            dial_timeout_s=5,
            server_hostname=COORDINATOR_DNS_NAME,
        )


@pytest.fixture
async def member(coordinator: Any, tmp_path: Path) -> AsyncIterator[Member]:
    keys = NodeKeys(tmp_path / "identity")
    identity = await enrol.enrol(keys, parse(coordinator.join_token()), coordinator.url, "host-1", timeout_s=10)
    member = Member(coordinator, keys, identity)
    task = asyncio.create_task(member.connection.run())
    yield member
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_node_greets_tells_what_it_holds_and_beats(coordinator: Any, member: Member) -> None:
    """The ordinary link: Hello first, a snapshot, heartbeats with growing numbers that are answered."""
    await coordinator.linked()
    await coordinator.until(lambda: len(coordinator.all(m.Heartbeat)) >= 3, "three heartbeats")
    assert coordinator.hellos[0].node_id == member.host.node_id
    assert [beat.seq for beat in coordinator.all(m.Heartbeat)][:3] == [1, 2, 3]
    assert member.connection.round_trip_s > 0


async def test_messages_come_in_their_order(coordinator: Any, member: Member) -> None:
    """A StopAttempt must never overtake its StartAttempt."""
    link = await coordinator.linked()
    for number in range(100):
        link.send_nowait(m.ForgetJobs([f"j-{number}"]))
    async with asyncio.timeout(10):
        while len(member.host.messages) < 100:
            member.host.got.clear()
            await member.host.got.wait()
    assert [message.job_ids for message in member.host.messages] == [[f"j-{n}"] for n in range(100)]  # type: ignore[attr-defined]


async def test_a_coordinator_that_restarts_is_found_again(coordinator: Any, member: Member) -> None:
    """An upgrade of the coordinator: the agent dials until it is back, and greets anew."""
    await coordinator.linked()
    port = coordinator.port
    await coordinator.die()
    await coordinator.serve(port)
    await coordinator.until(lambda: len(coordinator.hellos) >= 2 and coordinator.link, "a second link")
    assert member.connection.links == 2


async def test_a_coordinator_that_answers_no_heartbeat_is_left(
    coordinator: Any, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A half-dead connection (a NAT forgot it, a VM was frozen): TCP alone would notice after hours."""
    monkeypatch.setattr("kernpool_agent.connection.SILENT_S_MIN", 0.3)
    coordinator.heartbeat_interval_s = 0.1
    coordinator.acks = False
    await coordinator.until(lambda: len(coordinator.hellos) >= 2, "a second greeting")


async def test_a_removed_node_is_refused_and_keeps_asking_slowly(
    coordinator: Any, member: Member, caplog: pytest.LogCaptureFixture, eventually: Any
) -> None:
    """`kernpool node rm`: the agent must say so in its log, once, and not fill the disk with it."""
    link = await coordinator.linked()
    coordinator.revocations.revoke_node(member.host.node_id)
    await link.close("removed")
    await eventually(lambda: member.connection._backoff.failures >= 4)
    told = [record.message for record in caplog.records if "refused the link" in record.message]
    assert len(told) == 1
    assert "HTTP 403" in told[0]


async def test_the_coordinators_time_is_learned(coordinator: Any, tmp_path: Path) -> None:
    """Tokens are judged by the coordinator's clock, whatever this machine's says."""
    keys = NodeKeys(tmp_path / "identity")
    identity = await enrol.enrol(keys, parse(coordinator.join_token()), coordinator.url, "host-1", timeout_s=10)
    coordinator.clock_ahead_s = 1000
    member = Member(coordinator, keys, identity)
    task = asyncio.create_task(member.connection.run())
    await coordinator.linked()
    assert abs(member.clock.now_unix_s() - time.time() - 1000) < 5
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_a_pulse_counts_silence_only_while_it_waits_for_an_answer() -> None:
    """A coordinator that was asked nothing owes nothing."""
    pulse = Pulse(2.0, now=100.0)
    assert pulse.silent_s(500.0) == 0.0
    first, second = pulse.next_seq(500.0), pulse.next_seq(502.0)
    assert pulse.silent_s(503.0) == 403.0
    assert pulse.answered(second, 503.5) == 1.5
    assert pulse.answered(first, 504.0) is None, "an older answer says nothing new"
    assert pulse.answered(99, 504.0) is None
    assert pulse.silent_s(600.0) == 0.0


def test_a_coordinators_interval_is_bounded() -> None:
    """A mistaken configuration there must neither flood nor silence the link."""
    assert Pulse(0.0, 0.0).interval_s == 0.1
    assert Pulse(1e9, 0.0).interval_s == 60.0


def test_a_backoff_grows_to_its_bound_and_is_spread() -> None:
    """A thousand agents lost the same coordinator at the same moment."""
    backoff = Backoff(1.0, 8.0, random.Random(7))
    waits = [backoff.next_s() for _ in range(50)]
    assert all(0.5 <= wait <= 8.0 for wait in waits)
    assert waits[0] <= 1.0
    assert len({round(wait, 3) for wait in waits[5:]}) > 40
    backoff.succeeded()
    assert backoff.next_s() <= 1.0
