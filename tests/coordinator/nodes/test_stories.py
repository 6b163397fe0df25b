"""Nodes through the control plane: enrolling, linking, going away, being removed."""

from typing import Any

import pytest

from kernpool.bodies import JoinTokenRequest
from kernpool_coordinator.core.shapes import Certificate, Enrolment
from kernpool_coordinator.errors import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    StoreError,
    UnreachableError,
)
from kernpool_coordinator.simulation import SimAgent, SimLink
from kernpool_mesh.messages import DataKey, Gpu, HeartbeatAck, Hello, Snapshot

PIN = "sha256:" + "ab" * 32


async def token(stage: Any, **fields: Any) -> tuple[str, str]:
    body = await stage.plane.create_join_token(stage.ann, JoinTokenRequest(**fields))
    _, pin, token_id, secret = body["token"].split(".")
    assert (pin, token_id) == ("ab" * 32, body["id"])
    return token_id, secret


async def enrol(stage: Any, words: tuple[str, str], hostname: str = "alpha") -> Any:
    return await stage.plane.enrol_node(Enrolment(*words, hostname, "1.0"))


# --- enrolment ---


async def test_a_token_makes_a_node_once(stage: Any) -> None:
    await stage.open(ca_pin=PIN)
    words = await token(stage, pool="gpu")
    node = await enrol(stage, words)
    assert (node.node_id[:2], len(node.node_id), node.pool, node.generation) == ("n-", 14, "gpu", 1)
    with pytest.raises(ForbiddenError, match="used up"):
        await enrol(stage, words)
    assert (await stage.plane.join_tokens(stage.ann)).items == []
    await stage.reopen(ca_pin=PIN)
    with pytest.raises(ForbiddenError):
        await enrol(stage, words)
    body = await stage.plane.node(stage.ann, "alpha")
    assert (body["id"], body["state"], body["last_seen_s"]) == (node.node_id, "suspect", None)


async def test_a_counted_token_makes_so_many_nodes(stage: Any) -> None:
    await stage.open(ca_pin=PIN)
    words = await token(stage, uses=2)
    ids = {(await enrol(stage, words)).node_id for _ in range(2)}
    assert len(ids) == 2
    with pytest.raises(ForbiddenError):
        await enrol(stage, words)


async def test_an_expired_token_is_refused(stage: Any) -> None:
    await stage.open(ca_pin=PIN)
    words = await token(stage, expires_s=60)
    stage.clock.advance(61)
    with pytest.raises(ForbiddenError, match="expired 1 s ago"):
        await enrol(stage, words)


async def test_a_wrong_secret_and_a_revoked_token_are_refused_alike(stage: Any) -> None:
    await stage.open(ca_pin=PIN)
    token_id, secret = await token(stage)
    with pytest.raises(ForbiddenError) as wrong:
        await enrol(stage, (token_id, "x" * 43))
    await stage.plane.revoke_join_token(stage.ann, token_id)
    with pytest.raises(ForbiddenError) as revoked:
        await enrol(stage, (token_id, secret))
    assert str(wrong.value) == str(revoked.value)
    with pytest.raises(NotFoundError):
        await stage.plane.revoke_join_token(stage.ann, token_id)


async def test_enrolling_again_keeps_the_id_and_revokes_the_old_certificate(stage: Any) -> None:
    """A disk was replaced: the node is the same, whoever still has the old key is not."""
    await stage.open(ca_pin=PIN)
    node = await enrol(stage, await token(stage))
    await stage.plane.certificate_issued(Certificate(node.node_id, "a1", 1, 2e9))
    assert stage.plane.check_certificate(node.node_id, "a1") == 1
    again = await enrol(stage, await token(stage, node_id=node.node_id))
    assert (again.node_id, again.generation) == (node.node_id, 2)
    await stage.plane.certificate_issued(Certificate(node.node_id, "a2", 2, 2e9))
    for _ in range(2):
        with pytest.raises(ForbiddenError, match="revoked"):
            stage.plane.check_certificate(node.node_id, "a1")
        assert stage.plane.check_certificate(node.node_id, "a2") == 2
        await stage.reopen(ca_pin=PIN)
    assert (await stage.plane.node(stage.ann, node.node_id))["certificate_expires_unix_s"] == 2e9
    with pytest.raises(NotFoundError):
        await token(stage, node_id="n-unknown")


async def test_enrolling_again_hangs_up_on_the_old_holder(stage: Any) -> None:
    await stage.open(ca_pin=PIN)
    node = await enrol(stage, await token(stage))
    link = await stage.join(SimAgent(node.node_id))
    await enrol(stage, await token(stage, node_id=node.node_id))
    assert "enrolled anew" in link.closed_because


# --- links ---


async def test_a_linked_node_is_shown_with_what_it_has(stage: Any) -> None:
    await stage.open(coordinator_id="c-9", cluster_id="k-1")
    link = await stage.join(SimAgent("n-a", hostname="alpha", gpus=[Gpu(0, "GPU-0", "H100", 80_000)]))
    assert (link.welcome.coordinator_id, link.welcome.cluster_id) == ("c-9", "k-1")
    assert len(link.welcome.data_key) == 32
    link.tell([link.agent.heartbeat(7)])
    assert [message.seq for message in link.sent if isinstance(message, HeartbeatAck)] == [7]
    body = await stage.plane.node(stage.ann, "alpha")
    assert (body["state"], body["total"]["cpus"], body["gpus"][0]["name"]) == ("ready", 4, "H100")
    assert stage.plane.data_key("n-a") == (link.welcome.data_key_id, link.welcome.data_key)
    assert stage.plane.session("n-a") is link


async def test_what_a_node_has_is_known_while_it_is_away(stage: Any) -> None:
    await stage.open()
    await stage.join(SimAgent("n-a", hostname="alpha", gpus=[Gpu(0, "GPU-0", "H100", 80_000)]))
    await stage.settled()
    await stage.reopen()
    body = await stage.plane.node(stage.ann, "alpha")
    assert (body["state"], body["total"]["gpus"], body["gpus"][0]["uuid"]) == ("suspect", 1, "GPU-0")
    with pytest.raises(UnreachableError, match="away since this coordinator started"):
        stage.plane.session("n-a")
    with pytest.raises(NotFoundError):
        stage.plane.session("n-b")


async def test_nothing_is_sent_before_the_snapshot_is_complete(stage: Any) -> None:
    """A start that crosses the snapshot would be taken for one that the node has lost."""
    await stage.open()
    job_id = await stage.launch()
    agent = SimAgent("n-a")
    link = SimLink(stage.plane, agent)
    stage.plane.node_connected(link, agent.hello())
    link.tell([agent.inventory(), Snapshot([], [], last=False)])
    await stage.pass_time(2)
    assert (link.sent, await stage.state(job_id)) == ([], "pending")
    link.tell([Snapshot([], [], last=True)])
    await stage.until_state(job_id, "running")


async def test_a_newer_link_takes_the_place_of_an_older_one(stage: Any) -> None:
    """The agent dials again before we noticed that the old connection is dead."""
    await stage.open()
    old = await stage.join(SimAgent("n-a"))
    new = await stage.join(old.agent)
    assert old.closed_because == "a newer link of this node has taken its place"
    stage.plane.node_message(old, old.agent.heartbeat(1))
    assert stage.plane.session("n-a") is new
    await stage.pass_time(1, beating=(new,))
    assert (await stage.plane.node(stage.ann, "n-a"))["state"] == "ready"


async def test_a_copied_state_directory_is_refused_while_the_newer_start_is_linked(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a", incarnation=5))
    copy = SimAgent("n-a", incarnation=3)
    with pytest.raises(ConflictError, match="newer start"):
        SimLink.connect(stage.plane, copy)
    assert not link.closed


async def test_a_name_that_is_not_in_the_certificate_is_refused(stage: Any) -> None:
    await stage.open()
    link = SimLink(stage.plane, SimAgent("n-a"))
    with pytest.raises(ForbiddenError, match="says it is n-b"):
        stage.plane.node_connected(link, Hello(1, 1, "n-b", 1, "boot", "1.0"))


async def test_a_protocol_that_nobody_shares_is_refused(stage: Any) -> None:
    await stage.open()
    link = SimLink(stage.plane, SimAgent("n-a"))
    with pytest.raises(InvalidError, match="protocols 7 to 9"):
        stage.plane.node_connected(link, Hello(7, 9, "n-a", 1, "boot", "9.0"))


async def test_silence_makes_a_node_suspect_then_unreachable_then_ready_again(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    await stage.pass_time(7)
    assert (await stage.plane.node(stage.ann, "n-a"))["state"] == "suspect"
    job_id = await stage.launch()
    assert await stage.state(job_id) == "pending"
    await stage.pass_time(2)
    assert (await stage.plane.node(stage.ann, "n-a"))["state"] == "unreachable"
    link.tell([link.agent.heartbeat(1)])
    assert (await stage.plane.node(stage.ann, "n-a"))["state"] == "ready"
    await stage.pass_time(1, beating=(link,))
    await stage.until_state(job_id, "running")
    events = (await stage.plane.events(stage.ann, object_="node/n-a")).items
    assert [event["verb"] for event in events] == ["adopted", "ready", "suspect", "unreachable", "ready"]


async def test_a_mass_silence_is_told_and_nothing_is_declared(stage: Any) -> None:
    """The coordinator's own switch dies: ten nodes at once look dead, and their work is not given up."""
    await stage.open()
    links = [await stage.join(SimAgent(f"n-{number}")) for number in range(10)]
    await stage.pass_time(40, beating=tuple(links))
    await stage.pass_time(20, beating=tuple(links[3:]))
    states = {node["id"]: node["state"] for node in (await stage.plane.nodes(stage.ann)).items}
    assert [states[f"n-{number}"] for number in range(4)] == ["suspect", "suspect", "suspect", "ready"]
    await stage.pass_time(2, beating=tuple(links))
    await stage.settled()
    events = (await stage.plane.events(stage.ann, object_="server/health")).items
    assert [event["verb"] for event in events] == ["frozen", "thawed"]
    assert "own network" in events[0]["cause"]


async def test_data_keys_are_new_every_day(stage: Any) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a"))
    before = stage.plane.data_key("n-a")
    stage.clock.advance(86_401)
    link.tell([link.agent.heartbeat(1)])
    stage.plane.tick()
    (message,) = [one for one in link.sent if isinstance(one, DataKey)]
    assert stage.plane.data_key("n-a") == (message.key_id, message.key)
    assert (message.key_id, message.key != before[1]) == (before[0] + 1, True)


# --- removal ---


async def test_a_removed_node_is_refused_at_once_and_for_ever(stage: Any) -> None:
    await stage.open(ca_pin=PIN)
    node = await enrol(stage, await token(stage))
    await stage.plane.certificate_issued(Certificate(node.node_id, "a1", 1, 2e9))
    link = await stage.join(SimAgent(node.node_id))
    await stage.plane.remove_node(stage.ann, node.node_id)
    assert link.closed
    for _ in range(2):
        with pytest.raises(ForbiddenError, match="removed"):
            SimLink.connect(stage.plane, link.agent)
        with pytest.raises(ForbiddenError, match="removed"):
            stage.plane.check_certificate(node.node_id, "a1")
        with pytest.raises(NotFoundError):
            await stage.plane.node(stage.ann, node.node_id)
        assert (await stage.plane.nodes(stage.ann)).items == []
        await stage.reopen(ca_pin=PIN)


async def test_a_removal_that_is_not_on_disk_did_not_happen(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await stage.open()
    link = await stage.join(SimAgent("n-a"))

    async def full(*_: object) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(stage.plane._rooms.nodes._commits._store, "write", full, raising=True)
    with pytest.raises(StoreError):
        await stage.plane.remove_node(stage.ann, "n-a")
    assert (await stage.plane.node(stage.ann, "n-a"))["state"] == "ready"
    assert not link.closed


async def test_two_nodes_of_one_name_are_told_apart_by_id(stage: Any) -> None:
    await stage.open()
    for name in ("n-a", "n-b"):
        await stage.join(SimAgent(name, hostname="twin"))
    with pytest.raises(ConflictError, match="2 nodes are called twin: n-a, n-b"):
        await stage.plane.node(stage.ann, "twin")
    assert (await stage.plane.node(stage.ann, "n-b"))["name"] == "twin"


async def test_nodes_are_paged_by_name(stage: Any) -> None:
    await stage.open()
    for number, name in enumerate("cab"):
        await stage.join(SimAgent(f"n-{number}", hostname=name))
    first = await stage.plane.nodes(stage.ann, limit=2)
    second = await stage.plane.nodes(stage.ann, limit=2, after=first.next)
    assert [node["name"] for node in first.items + second.items] == ["a", "b", "c"]
