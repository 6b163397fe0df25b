"""Join tokens: the text, the hash and which rule refuses."""

import dataclasses

import pytest

from kernpool_tls import jointoken
from kernpool_tls.errors import (
    JoinTokenExpiredError,
    JoinTokenForeignError,
    JoinTokenMalformedError,
    JoinTokenNodeError,
    JoinTokenUsedError,
)
from kernpool_tls.jointoken import JoinToken, JoinTokenRecord

PIN = "sha256:" + "ab" * 32
NOW = 1_800_000_000.0


@pytest.fixture
def token() -> JoinToken:
    return jointoken.mint(PIN)


@pytest.fixture
def record(token: JoinToken) -> JoinTokenRecord:
    return jointoken.JoinTokenRecord(token.token_id, token.secret_sha256, NOW + 900, 1)


def test_a_token_survives_copy_and_paste(token: JoinToken) -> None:
    """A person copies the token from a terminal, with a newline."""
    assert jointoken.parse(f"  {token}\n") == token
    assert str(token).startswith("kpj1." + "ab" * 32 + ".")


def test_a_genuine_token_is_honoured(token: JoinToken, record: JoinTokenRecord) -> None:
    """The ordinary enrolment."""
    jointoken.check(token, record, pin=PIN, now_unix_s=NOW)


@pytest.mark.parametrize(
    "text", ["", "kpj1", "kpj1.ab.cd.ef", "kpd1.a.b", "kpj2." + "ab" * 32 + ".x.y", "kpj1." + "é" * 200]
)
def test_what_is_no_token_is_told(text: str) -> None:
    """A person pastes something else."""
    with pytest.raises(JoinTokenMalformedError):
        jointoken.parse(text)


def test_a_truncated_token_is_malformed(token: JoinToken) -> None:
    """The last character was not selected."""
    with pytest.raises(JoinTokenMalformedError):
        jointoken.parse(str(token)[:-1])


def test_a_used_token_is_refused(token: JoinToken, record: JoinTokenRecord) -> None:
    """A token of one use enrols a second machine."""
    with pytest.raises(JoinTokenUsedError):
        jointoken.check(token, dataclasses.replace(record, uses_left=0), pin=PIN, now_unix_s=NOW)


def test_an_expired_token_is_refused(token: JoinToken, record: JoinTokenRecord) -> None:
    """A token from yesterday's chat message is tried."""
    with pytest.raises(JoinTokenExpiredError, match="expired 1 s ago"):
        jointoken.check(token, record, pin=PIN, now_unix_s=NOW + 901)


def test_a_token_for_another_coordinator_is_refused(token: JoinToken, record: JoinTokenRecord) -> None:
    """A machine is pointed at the staging coordinator with production's token."""
    with pytest.raises(JoinTokenForeignError, match="another coordinator"):
        jointoken.check(token, record, pin="sha256:" + "00" * 32, now_unix_s=NOW)


def test_an_unknown_token_and_a_wrong_secret_look_the_same(token: JoinToken, record: JoinTokenRecord) -> None:
    """Somebody probes which token ids exist."""
    other = dataclasses.replace(token, secret=jointoken.mint(PIN).secret)
    with pytest.raises(JoinTokenForeignError) as unknown:
        jointoken.check(token, None, pin=PIN, now_unix_s=NOW)
    with pytest.raises(JoinTokenForeignError) as wrong:
        jointoken.check(other, record, pin=PIN, now_unix_s=NOW)
    assert str(unknown.value) == str(wrong.value)


def test_the_old_id_is_kept_only_with_a_token_bound_to_it(token: JoinToken, record: JoinTokenRecord) -> None:
    """A machine claims to be a node that exists."""
    bound = dataclasses.replace(record, node_id="n-old")
    jointoken.check(token, bound, pin=PIN, now_unix_s=NOW, node_id="n-old")
    jointoken.check(token, bound, pin=PIN, now_unix_s=NOW)
    with pytest.raises(JoinTokenNodeError, match="bound to node n-old"):
        jointoken.check(token, bound, pin=PIN, now_unix_s=NOW, node_id="n-new")
    with pytest.raises(JoinTokenNodeError, match="makes new nodes"):
        jointoken.check(token, record, pin=PIN, now_unix_s=NOW, node_id="n-old")


def test_neither_repr_nor_record_nor_refusal_shows_the_secret(token: JoinToken, record: JoinTokenRecord) -> None:
    """Tokens end in logs and database dumps."""
    with pytest.raises(JoinTokenUsedError) as refusal:
        jointoken.check(token, dataclasses.replace(record, uses_left=0), pin=PIN, now_unix_s=NOW)
    for text in (repr(token), repr(record), str(refusal.value)):
        assert token.secret not in text


def test_two_tokens_have_nothing_in_common() -> None:
    """The random source is really used."""
    first, second = jointoken.mint(PIN), jointoken.mint(PIN)
    assert first.token_id != second.token_id
    assert first.secret != second.secret
    assert len(first.secret) == 43, "256 bits in base64url"
