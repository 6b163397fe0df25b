"""Enrolment and renewal: who gets a certificate, and who does not."""

import asyncio
import base64
import ssl
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from running import Coordinator, Enrol, Start
from standin import StandIn, new_request, post

from kernpool_coordinator.core.shapes import Certificate
from kernpool_tls import jointoken
from kernpool_tls.contexts import client_context
from kernpool_tls.firstcontact import fetch_authority
from kernpool_tls.names import COORDINATOR_DNS_NAME
from kernpool_tls.renewal import renewal_statement


async def _enrol(coordinator: Coordinator, token: str, **changes: Any) -> tuple[int, Any]:
    body = {
        "token": token,
        "csr_pem": new_request()[1].decode(),
        "hostname": "alpha",
        "agent_version": "0",
        "unix_s": time.time(),
    }
    return await post(coordinator.node_url, coordinator.ca_pem, "/node/v1/enrol", body | changes)


async def test_a_node_learns_the_authority_by_its_pin_and_enrols(coordinator: Coordinator) -> None:
    """The way of a fresh agent: the token's pin is all it trusts at first."""
    token = await coordinator.join_token(pool="lab")
    address = coordinator.daemon.node_address
    ca_pem = await fetch_authority(address.host, address.port, jointoken.parse(token).pin)
    body = {"token": token, "csr_pem": new_request()[1].decode(), "hostname": "alpha", "unix_s": time.time()}
    status, answer = await post(coordinator.node_url, ca_pem, "/node/v1/enrol", body)
    assert status == 200
    assert answer["node_id"].startswith("n-")
    assert answer["ca_pem"] == ca_pem
    assert (await coordinator.json("GET", f"/api/v1/nodes/{answer['node_id']}"))["pool"] == "lab"


async def test_of_fifty_uses_at_once_of_a_single_use_token_exactly_one_wins(coordinator: Coordinator) -> None:
    """A token that was pasted into fifty machines, all starting at the same moment."""
    token = await coordinator.join_token()
    answers = await asyncio.gather(*(_enrol(coordinator, token) for _ in range(50)))
    assert sorted(status for status, _ in answers) == [200] + [403] * 49
    assert len((await coordinator.json("GET", "/api/v1/nodes"))["items"]) == 1


async def test_a_counted_token_admits_as_many_as_it_says(coordinator: Coordinator) -> None:
    """One token for an autoscaling group of three."""
    token = await coordinator.join_token(uses=3)
    answers = await asyncio.gather(*(_enrol(coordinator, token) for _ in range(10)))
    assert sorted(status for status, _ in answers) == [200] * 3 + [403] * 7
    ids = {answer["node_id"] for status, answer in answers if status == 200}
    assert len(ids) == 3


async def test_an_expired_token_is_refused(coordinator: Coordinator) -> None:
    """A token from yesterday's chat."""
    token = await coordinator.join_token(expires_s=1e-9)
    status, problem = await _enrol(coordinator, token)
    assert status == 403
    assert "expired" in problem["message"]


async def test_a_token_of_another_coordinator_is_refused_by_its_pin(coordinator: Coordinator) -> None:
    """A token for the other cluster."""
    foreign = jointoken.mint("sha256:" + "0" * 64)
    status, problem = await _enrol(coordinator, str(foreign))
    assert (status, problem["code"]) == (403, "join_token_foreign")
    assert "another coordinator" in problem["message"]


async def test_an_invented_token_with_the_right_pin_is_refused(coordinator: Coordinator) -> None:
    """The pin is public: only the secret counts."""
    pin = jointoken.parse(await coordinator.join_token()).pin
    status, _ = await _enrol(coordinator, str(jointoken.mint(pin)))
    assert status == 403


async def test_a_revoked_token_is_refused(coordinator: Coordinator) -> None:
    """Somebody revoked it before it was used."""
    token = await coordinator.join_token()
    await coordinator.json("DELETE", f"/api/v1/join-tokens/{jointoken.parse(token).token_id}")
    assert (await _enrol(coordinator, token))[0] == 403


@pytest.mark.parametrize("skew_s", [-400, 400, 1e12, -1e12])
async def test_a_clock_that_is_off_is_told_with_both_times_and_costs_no_use(
    coordinator: Coordinator, skew_s: float
) -> None:
    """A VM whose clock stands in 1970."""
    token = await coordinator.join_token()
    status, problem = await _enrol(coordinator, token, unix_s=time.time() + skew_s)
    assert (status, problem["code"]) == (400, "clock_skew")
    assert problem["message"].count("coordinator") >= 1
    assert (await _enrol(coordinator, token))[0] == 200


@pytest.mark.parametrize(
    "csr_pem",
    [
        "",
        "not a request",
        "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n",
        "x" * 20_000,
    ],
)
async def test_a_broken_request_costs_no_use_of_the_token(coordinator: Coordinator, csr_pem: str) -> None:
    """A faulty agent must not burn the token."""
    token = await coordinator.join_token()
    status, _ = await _enrol(coordinator, token, csr_pem=csr_pem)
    assert status == 400
    assert (await _enrol(coordinator, token))[0] == 200


@pytest.mark.parametrize("token", ["", "kpj1.", "kpt_abc", "x" * 200])
async def test_a_text_that_is_no_token_is_refused(coordinator: Coordinator, token: str) -> None:
    """An API token in place of a join token."""
    status, problem = await _enrol(coordinator, token)
    assert (status, problem["code"]) == (400, "join_token_malformed")


async def test_refusals_never_show_the_secret(coordinator: Coordinator, capfd: pytest.CaptureFixture[str]) -> None:
    """The refused token may be good for another coordinator."""
    foreign = jointoken.mint("sha256:" + "0" * 64)
    _, problem = await _enrol(coordinator, str(foreign))
    assert foreign.secret not in str(problem)
    _, problem = await _enrol(coordinator, str(foreign), hostname=3)
    assert foreign.secret not in str(problem)


async def test_re_enrolling_under_the_old_id_revokes_the_old_certificate(
    coordinator: Coordinator, agent: StandIn, tmp_path: Path
) -> None:
    """A node's disk was replaced: it keeps its id, its former self is out."""
    token = await coordinator.join_token(node_id=agent.node_id)
    (tmp_path / "new").mkdir()
    again = await StandIn.enrol(coordinator.node_url, token, coordinator.ca_pem, tmp_path / "new", hostname="alpha")
    assert again.node_id == agent.node_id
    await asyncio.wait_for(agent.ended.wait(), 5)
    with pytest.raises(Exception, match="403"):
        await agent.connect()
    await again.link()
    await coordinator.wait_state(again.node_id, "ready")
    await again.close()


async def test_too_many_tries_from_one_address_are_refused(start: Start) -> None:
    """Somebody hammers the enrolment endpoint."""
    coordinator = await start(join_tries_per_min=5)
    answers = [await _enrol(coordinator, "kpj1.") for _ in range(7)]
    assert [status for status, _ in answers] == [400] * 5 + [429] * 2
    assert answers[-1][1]["code"] == "rate_limited"


async def _renew(
    coordinator: Coordinator, agent: StandIn, key: ec.EllipticCurvePrivateKey, **changes: Any
) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(
            coordinator.node_url + "/node/v1/nonce",
            ssl=client_context(coordinator.ca_pem),
            server_hostname=COORDINATOR_DNS_NAME,
        ) as answer,
    ):
        nonce = (await answer.json())["nonce"]
    agent.next_key, csr_pem = new_request()
    signature = key.sign(renewal_statement(nonce, csr_pem), ec.ECDSA(hashes.SHA256()))
    body = {
        "certificate_pem": agent.certificate_pem,
        "csr_pem": csr_pem.decode(),
        "nonce": nonce,
        "signature": base64.b64encode(signature).decode(),
    }
    return await post(coordinator.node_url, coordinator.ca_pem, "/node/v1/renew", body | changes)


async def _age(coordinator: Coordinator, agent: StandIn, ended_before_s: float) -> None:
    """Give the agent a genuine certificate that ended some time ago."""
    authority = coordinator.daemon._identity.authority
    agent.key, csr_pem = new_request()
    issued = authority.sign_node(csr_pem, agent.node_id, time.time() - ended_before_s - 3600, 3600)
    await coordinator.daemon.api.core.certificate_issued(
        Certificate(agent.node_id, issued.serial, 1, issued.not_after_unix_s)
    )
    agent.certificate_pem = issued.certificate_pem.decode()
    agent.write_identity()


async def test_an_expired_certificate_cannot_link_but_renews_by_its_key_and_then_links(
    coordinator: Coordinator, enrol: Enrol
) -> None:
    """A laptop that slept for three days comes back."""
    agent = await enrol()
    await _age(coordinator, agent, 3 * 86400)
    with pytest.raises(Exception, match=r"expired|broke|cannot reach"):
        await agent.link()
    status, answer = await _renew(coordinator, agent, agent.key)
    assert status == 200
    agent.certificate_pem, agent.key = answer["certificate_pem"], agent.next_key
    agent.write_identity()
    await agent.link()
    await coordinator.wait_state(agent.node_id, "ready")


async def test_after_seven_days_only_a_token_helps(coordinator: Coordinator, enrol: Enrol) -> None:
    """A machine from the cupboard."""
    agent = await enrol()
    await _age(coordinator, agent, 8 * 86400)
    status, problem = await _renew(coordinator, agent, agent.key)
    assert (status, problem["code"]) == (403, "renewal_refused")
    assert "token" in problem["message"]


async def test_a_stolen_certificate_without_its_key_renews_nothing(coordinator: Coordinator, enrol: Enrol) -> None:
    """Certificates travel in clear in every handshake's log; keys do not."""
    agent = await enrol()
    status, problem = await _renew(coordinator, agent, new_request()[0])
    assert (status, problem["code"]) == (403, "renewal_refused")


async def test_a_nonce_is_good_once_and_only_if_it_was_given_out(coordinator: Coordinator, enrol: Enrol) -> None:
    """A recorded renewal cannot be played again."""
    agent = await enrol()
    status, problem = await _renew(coordinator, agent, agent.key, nonce="0" * 64)
    assert (status, problem["code"]) == (403, "renewal_refused")


async def test_a_removed_node_renews_nothing(coordinator: Coordinator, enrol: Enrol) -> None:
    """Removed means removed, by whatever door."""
    agent = await enrol()
    await coordinator.json("DELETE", f"/api/v1/nodes/{agent.node_id}")
    assert (await _renew(coordinator, agent, agent.key))[0] == 403


async def test_the_node_listener_speaks_tls_1_3_only_and_shows_nothing_else(coordinator: Coordinator) -> None:
    """A scanner tries old TLS and other paths."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    address = coordinator.daemon.node_address
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection(address.host, address.port, ssl=context)
    for method, path, expected in (("GET", "/", 404), ("GET", "/api/v1/info", 404), ("GET", "/node/v1/enrol", 405)):
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                method,
                coordinator.node_url + path,
                ssl=client_context(coordinator.ca_pem),
                server_hostname=COORDINATOR_DNS_NAME,
            ) as answer,
        ):
            assert answer.status == expected
            assert "code" in await answer.json()
