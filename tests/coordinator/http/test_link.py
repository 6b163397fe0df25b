"""Links: which are taken, which are refused, and what ends them."""

import asyncio
from pathlib import Path

import aiohttp
import pytest
from running import Coordinator, Enrol, Start
from standin import StandIn, new_request, until

from kernpool_mesh.errors import LinkClosedError
from kernpool_mesh.link import Link, Side
from kernpool_mesh.messages import CertificateIssued, CertificateRequest, Heartbeat, Hello, Resources, Welcome
from kernpool_tls.authority import Authority
from kernpool_tls.contexts import client_context
from kernpool_tls.names import COORDINATOR_DNS_NAME
from kernpool_tls.sealing import Sealer


async def test_a_link_is_welcomed_first_of_all(coordinator: Coordinator, agent: StandIn) -> None:
    """The core may have orders before the Welcome has left: they come after it."""
    assert agent.welcome is not None
    assert agent.welcome.cluster_id == coordinator.daemon._identity.cluster_id
    assert len(agent.welcome.data_key) == 32
    assert not any(isinstance(message, Welcome) for message in agent.received)


async def test_without_a_certificate_there_is_no_link(coordinator: Coordinator) -> None:
    """Anybody may dial; only nodes may link."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(
            coordinator.node_url + "/node/v1/link",
            ssl=client_context(coordinator.ca_pem),
            server_hostname=COORDINATOR_DNS_NAME,
        ) as answer,
    ):
        assert (answer.status, (await answer.json())["code"]) == (403, "no_certificate")


async def test_a_certificate_of_another_authority_is_refused_in_the_handshake(
    coordinator: Coordinator, enrol: Enrol, tmp_path: Path
) -> None:
    """A node of another cluster, or somebody with an authority of his own."""
    agent = await enrol()
    other = Authority.open(tmp_path / "other", Sealer(b"k" * 32), coordinator.daemon._identity.cluster_id, 1.8e9)
    agent.key, csr_pem = new_request()
    agent.certificate_pem = other.sign_node(csr_pem, agent.node_id, 1.8e9).certificate_pem.decode()
    agent.write_identity()
    with pytest.raises(LinkClosedError):
        await agent.link()


async def test_the_hello_cannot_name_another_node(coordinator: Coordinator, enrol: Enrol) -> None:
    """A stolen node speaks for itself only: the certificate says who it is."""
    agent, other = await enrol("alpha"), await enrol("beta")
    mine, agent.node_id = agent.node_id, other.node_id
    with pytest.raises(LinkClosedError):
        await agent.link()
    agent.node_id = mine
    await agent.link()


async def test_a_removed_node_is_cut_at_once_and_stays_out(coordinator: Coordinator, agent: StandIn) -> None:
    """`kernpool node rm` of a stolen machine."""
    await coordinator.json("DELETE", f"/api/v1/nodes/{agent.node_id}")
    await asyncio.wait_for(agent.ended.wait(), 5)
    with pytest.raises(LinkClosedError, match="403"):
        await agent.link()


async def test_a_second_link_of_a_newer_incarnation_takes_over(coordinator: Coordinator, agent: StandIn) -> None:
    """The agent was restarted while its old connection hangs half open."""
    first, first_ended = agent.connection, agent.ended
    await agent.link()
    await asyncio.wait_for(first_ended.wait(), 5)
    assert first is not None
    assert first.end is not None
    assert agent.connection is not None
    assert agent.connection.end is None
    await coordinator.wait_state(agent.node_id, "ready")


async def test_an_older_incarnation_is_refused_and_the_newer_stays(coordinator: Coordinator, agent: StandIn) -> None:
    """A copy of the disk of yesterday was booted."""
    await agent.link()
    newer, newer_ended = agent.connection, agent.ended
    with pytest.raises(LinkClosedError):
        await agent.link(incarnation=1)
    assert newer is not None
    assert newer.end is None
    assert not newer_ended.is_set()
    agent.connection = newer


async def test_whoever_says_no_hello_is_hung_up_on(coordinator: Coordinator, enrol: Enrol) -> None:
    """A half-open link holds a descriptor for greeting_s and no longer."""
    agent = await enrol()
    link = Link(await agent.connect(), Side.AGENT)
    with pytest.raises(LinkClosedError, match="No Hello"):
        await asyncio.wait_for(link.receive(), 6)
    await link.close()


async def test_a_first_message_that_is_no_hello_is_refused(coordinator: Coordinator, enrol: Enrol) -> None:
    """A program that speaks another protocol."""
    agent = await enrol()
    link = Link(await agent.connect(), Side.AGENT)
    await link.send(Heartbeat(1, Resources()))
    with pytest.raises(LinkClosedError, match="expected a Hello"):
        await asyncio.wait_for(link.receive(), 6)
    await link.close()


async def test_a_protocol_nobody_shares_is_refused_with_words(coordinator: Coordinator, enrol: Enrol) -> None:
    """An agent of the year after next."""
    agent = await enrol()
    link = Link(await agent.connect(), Side.AGENT)
    await link.send(Hello(50, 60, agent.node_id, 1, "boot", "99"))
    with pytest.raises(LinkClosedError, match="proto"):
        await asyncio.wait_for(link.receive(), 6)
    await link.close()


async def test_a_certificate_is_renewed_over_the_live_link(coordinator: Coordinator, agent: StandIn) -> None:
    """At half life the agent asks; the new certificate links as well."""
    issued = await agent.renew_over_link()
    assert issued.error == ""
    agent.certificate_pem = issued.certificate_pem.decode()
    agent.write_identity()
    await agent.link()
    await coordinator.wait_state(agent.node_id, "ready")


async def test_a_broken_request_over_the_link_is_refused_and_the_link_goes_on(
    coordinator: Coordinator, agent: StandIn
) -> None:
    """A faulty key worker."""
    assert agent.connection is not None
    await agent.connection.send(CertificateRequest(5, b"nonsense"))
    await until(lambda: agent.answers(CertificateIssued))
    (answer,) = agent.answers(CertificateIssued)
    assert answer.error
    assert answer.certificate_pem == b""
    assert agent.connection.end is None


async def test_at_the_end_the_coordinator_says_goodbye(
    start: Start, enrol: Enrol, coordinator: Coordinator, agent: StandIn
) -> None:
    """The agent's log says that it was a stop and no fault."""
    link = agent.connection
    await coordinator.daemon.close()
    await asyncio.wait_for(agent.ended.wait(), 5)
    assert link is not None
    assert link.end is not None
    assert "stopping" in link.end.sentence
