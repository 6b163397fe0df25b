"""Enrolment at a real node listener: what is trusted, what is refused, and how it is told."""

from pathlib import Path
from typing import Any

import pytest

from kernpool_agent import enrol
from kernpool_agent.errors import EnrolRefusedError, UnreachableError
from kernpool_tls.jointoken import parse
from kernpool_tls.keys import NodeKeys


async def join(coordinator: Any, token: str, directory: Path, url: str = "") -> Any:
    return await enrol.enrol(NodeKeys(directory), parse(token), url or coordinator.url, "host-1", timeout_s=10)


async def test_a_node_enrols_and_keeps_its_identity_private(coordinator: Any, tmp_path: Path) -> None:
    """The first start on a new machine."""
    identity = await join(coordinator, coordinator.join_token(), tmp_path / "identity")
    assert identity.node_id == "n-test00000000"
    assert identity.cluster_id == "kp-test"
    assert NodeKeys(tmp_path / "identity").identity() == identity
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "identity").iterdir()}
    assert modes == {0o600}
    assert (tmp_path / "identity").stat().st_mode & 0o777 == 0o700


async def test_an_expired_token_is_told_as_expired(coordinator: Any, tmp_path: Path) -> None:
    """Somebody pasted the token from yesterday's chat."""
    token = coordinator.join_token(expires_unix_s=coordinator.now() - 5)
    with pytest.raises(EnrolRefusedError, match=r"expired \d+ s ago; make a new one"):
        await join(coordinator, token, tmp_path / "identity")


async def test_a_used_token_is_told_as_used(coordinator: Any, tmp_path: Path) -> None:
    """A token for one node in a script that runs on two."""
    token = coordinator.join_token()
    await join(coordinator, token, tmp_path / "first")
    with pytest.raises(EnrolRefusedError, match="is used up; make a new one"):
        await join(coordinator, token, tmp_path / "second")


async def test_a_token_of_another_coordinator_is_seen_before_anything_is_said(
    coordinator: Any, foreign: Any, tmp_path: Path
) -> None:
    """Two clusters, one operator, the wrong address: the token's secret must not travel to the wrong place."""
    token = coordinator.join_token()
    with pytest.raises(EnrolRefusedError, match="not the one that the join token pins"):
        await join(foreign, token, tmp_path / "identity")
    assert foreign.enrolled == 0
    assert not (tmp_path / "identity" / "identity.pem").exists()


async def test_a_removed_token_is_told_as_unknown(coordinator: Any, tmp_path: Path) -> None:
    """The operator revoked the token."""
    token = coordinator.join_token()
    coordinator.tokens.clear()
    with pytest.raises(EnrolRefusedError, match="never issued the join token, or has removed it"):
        await join(coordinator, token, tmp_path / "identity")


async def test_clocks_too_far_apart_are_named_both(coordinator: Any, tmp_path: Path) -> None:
    """A VM that woke up with last week's time: its certificate would not be valid yet."""
    coordinator.clock_ahead_s = 3600
    with pytest.raises(EnrolRefusedError, match=r"the node's clock says .* UTC, the coordinator's .* UTC.*behind"):
        await join(coordinator, coordinator.join_token(), tmp_path / "identity")


async def test_a_coordinator_that_is_down_is_worth_another_try(coordinator: Any, tmp_path: Path) -> None:
    """The node boots before the coordinator does: this is no refusal."""
    token = coordinator.join_token()
    await coordinator.die()
    with pytest.raises(UnreachableError, match="cannot reach a coordinator"):
        await join(coordinator, token, tmp_path / "identity")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "not a join token"),
        ("kpj1.abc", "not a join token"),
        ("kpt_this-is-an-api-token", "not a join token"),
        ("\x00\xff", "not a join token"),
    ],
)
def test_what_is_no_token_is_told_with_its_file(tmp_path: Path, content: str, told: str) -> None:
    """The API token, half a token, or nothing was written into the file."""
    path = tmp_path / "join-token"
    path.write_text(content)
    with pytest.raises(EnrolRefusedError, match=f"{path}: {told}"):
        enrol.read_token(path)


def test_a_missing_token_says_what_to_do(tmp_path: Path) -> None:
    """An agent started by hand for the first time."""
    with pytest.raises(EnrolRefusedError, match="make a join token on the coordinator"):
        enrol.read_token(None)
    with pytest.raises(EnrolRefusedError, match=r"cannot be read: No such file"):
        enrol.read_token(tmp_path / "missing")


async def test_the_token_is_in_no_message(coordinator: Any, tmp_path: Path) -> None:
    """Errors go into logs and chats: the secret must not."""
    token = coordinator.join_token(uses_left=0)
    with pytest.raises(EnrolRefusedError) as caught:
        await join(coordinator, token, tmp_path / "identity")
    assert token.rpartition(".")[2] not in str(caught.value)
