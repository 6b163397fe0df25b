"""Data tokens: genuine ones are honoured, all others refused for the right reason."""

import base64
import dataclasses

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernpool_mesh.datatoken import LIFETIME_S_MAX, Claims, sign, verify
from kernpool_mesh.errors import (
    DataTokenError,
    DataTokenExpiredError,
    DataTokenMalformedError,
    DataTokenNodeError,
    DataTokenSignatureError,
)

NOW = 1_800_000_000
KEY, OLD_KEY = b"k" * 32, b"o" * 32
KEYS = {7: KEY, 6: OLD_KEY}
CLAIMS = Claims("n-a", "sandbox/sb-1", ("exec", "read"), NOW + 300, "ann")


def test_a_genuine_token_gives_its_claims() -> None:
    """The ordinary direct exec."""
    assert verify(sign(KEY, 7, CLAIMS, NOW), KEYS, "n-a", NOW + 1) == CLAIMS


def test_a_token_of_the_key_before_the_rotation_is_still_good() -> None:
    """The key rotated a minute ago; the client's token is older."""
    assert verify(sign(OLD_KEY, 6, CLAIMS, NOW), KEYS, "n-a", NOW + 1) == CLAIMS


def test_claims_cover_their_verbs_on_their_object_only() -> None:
    """A token for one sandbox is tried on another, or for more."""
    assert CLAIMS.allows("exec", "sandbox/sb-1")
    assert not CLAIMS.allows("write", "sandbox/sb-1")
    assert not CLAIMS.allows("exec", "sandbox/sb-2")


def test_an_expired_token_is_refused() -> None:
    """A token is used for longer than it was given for."""
    with pytest.raises(DataTokenExpiredError, match="expired 1 s ago"):
        verify(sign(KEY, 7, CLAIMS, NOW), KEYS, "n-a", NOW + 301)


def test_no_token_lasts_longer_than_five_minutes() -> None:
    """A stolen key, or a bug, makes a token for a year: the node itself holds the bound."""
    eternal = dataclasses.replace(CLAIMS, exp_unix_s=NOW + 86400 * 365)
    with pytest.raises(ValueError, match="at most"):
        sign(KEY, 7, eternal, NOW)
    with pytest.raises(DataTokenExpiredError, match=f"at most {LIFETIME_S_MAX} s"):
        verify(sign(KEY, 7, eternal, eternal.exp_unix_s - 1), KEYS, "n-a", NOW)


def test_a_token_for_another_node_is_refused() -> None:
    """The key differs per node, but a backup of one may run as another."""
    with pytest.raises(DataTokenNodeError, match="is for node n-a, this is n-b"):
        verify(sign(KEY, 7, CLAIMS, NOW), KEYS, "n-b", NOW)


def test_a_token_of_an_unknown_key_is_refused() -> None:
    """Made by another coordinator."""
    with pytest.raises(DataTokenSignatureError):
        verify(sign(b"x" * 32, 7, CLAIMS, NOW), KEYS, "n-a", NOW)


def test_a_token_that_names_another_key_is_refused() -> None:
    """A signature is good under exactly the key that it names."""
    with pytest.raises(DataTokenSignatureError):
        verify(sign(OLD_KEY, 7, CLAIMS, NOW), KEYS, "n-a", NOW)


def test_changed_claims_are_refused() -> None:
    """A client gives itself more verbs."""
    _prefix, _claims, mac = sign(KEY, 7, CLAIMS, NOW).split(".")
    fields = ["n-a", "sandbox/sb-1", ["exec", "write"], NOW + 300, "ann", 7]
    claims = base64.urlsafe_b64encode(msgpack.packb(fields)).rstrip(b"=").decode()
    with pytest.raises(DataTokenSignatureError):
        verify(f"kpd1.{claims}.{mac}", KEYS, "n-a", NOW)


@pytest.mark.parametrize(
    "token", ["", "kpd1", "kpd1.", "kpd1..", "kpd1.a", "kpj1.a.b", "kpd1.é.b", "x" * 5000, "kpd1.a.%%"]
)
def test_what_is_no_token_is_told(token: str) -> None:
    """Another kind of token, or rubbish, in the header."""
    with pytest.raises(DataTokenMalformedError):
        verify(token, KEYS, "n-a", NOW)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=100), st.booleans())
def test_any_text_is_refused_with_a_typed_error(text: str, with_prefix: bool) -> None:
    """Whatever stands in the header, the answer is a refusal and no crash."""
    with pytest.raises(DataTokenError):
        verify("kpd1." + text if with_prefix else text, KEYS, "n-a", NOW)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 200), st.characters(codec="ascii"))
def test_one_changed_character_is_refused(position: int, character: str) -> None:
    """Signed claims of other shapes than ours, too."""
    token = sign(KEY, 7, CLAIMS, NOW)
    position %= len(token) - 1  # the last character of base64 carries spare bits
    changed = token[:position] + character + token[position + 1 :]
    if changed != token:
        with pytest.raises(DataTokenError):
            verify(changed, KEYS, "n-a", NOW)


@pytest.mark.parametrize(
    "fields", [[], {}, ["n-a"], [1, 2, 3, 4, 5, 6], ["n-a", "o", "exec", NOW, "a", 7], ["n-a", "o", [1], NOW, "a", 7]]
)
def test_signed_claims_of_another_shape_are_malformed(fields: object) -> None:
    """A future version signs other claims with the same key."""
    import hashlib
    import hmac

    signed = "kpd1." + base64.urlsafe_b64encode(msgpack.packb(fields)).rstrip(b"=").decode()
    mac = base64.urlsafe_b64encode(hmac.digest(KEY, signed.encode(), hashlib.sha256)).rstrip(b"=").decode()
    with pytest.raises(DataTokenMalformedError):
        verify(f"{signed}.{mac}", KEYS, "n-a", NOW)


def test_no_error_shows_the_token() -> None:
    """Errors end in logs and answers."""
    token = sign(KEY, 7, CLAIMS, NOW)
    with pytest.raises(DataTokenError) as error:
        verify(token, {}, "n-a", NOW)
    assert token not in str(error.value)


def test_a_short_key_or_an_oversized_token_is_never_signed() -> None:
    """A misconfigured coordinator."""
    with pytest.raises(ValueError, match="32 bytes"):
        sign(b"short", 7, CLAIMS, NOW)
    with pytest.raises(ValueError, match="exceeds"):
        sign(KEY, 7, dataclasses.replace(CLAIMS, actor="a" * 3000), NOW)
