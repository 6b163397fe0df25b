"""Renewal: who gets a new certificate by the proof of the old key, and who does not."""

import base64
import time
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from kernpool_tls.authority import Authority
from kernpool_tls.errors import ClockSkewError, RateLimitedError, RenewalRefusedError, RevokedError
from kernpool_tls.identity import Identity, IdentityPhase
from kernpool_tls.peer import PeerIdentity, Revocations
from kernpool_tls.renewal import NONCES_MAX, NonceBook, check_renewal, renewal_statement
from kernpool_tls.times import check_clock_skew, renew_at_unix_s

if TYPE_CHECKING:
    from pathlib import Path

    from tests.tls.conftest import MakeKey, NodeFiles

DAY_S = 86400
HOUR_S = 3600
NONCE = "ab" * 32


class Renew(Protocol):
    def __call__(
        self, age_s: float = 0.0, by: Authority | None = None, revocations: Revocations | None = None, **replaced: Any
    ) -> PeerIdentity: ...


def sign(private: ec.EllipticCurvePrivateKey, nonce: str, csr_pem: bytes) -> str:
    return base64.b64encode(private.sign(renewal_statement(nonce, csr_pem), ec.ECDSA(hashes.SHA256()))).decode()


@pytest.fixture
def renew(authority: Authority, node: "NodeFiles", make_key: "MakeKey") -> Renew:
    """Renew `node` `age_s` seconds after it was enrolled, with parts replaced."""
    csr_pem = make_key().csr_pem

    def renew(
        age_s: float = 0.0, by: Authority | None = None, revocations: Revocations | None = None, **replaced: Any
    ) -> PeerIdentity:
        fields: dict[str, Any] = {
            "certificate_pem": node.issued.certificate_pem,
            "csr_pem": csr_pem,
            "nonce": NONCE,
            "signature": sign(node.key.private, NONCE, csr_pem),
            "now_unix_s": time.time() + age_s,
        } | replaced
        return check_renewal(by or authority, revocations or Revocations(), **fields)

    return renew


@pytest.mark.parametrize("age_s", [0, 12 * HOUR_S, 2 * DAY_S, 7 * DAY_S + 23 * HOUR_S])
def test_a_genuine_certificate_renews_until_seven_days_after_its_end(renew: Renew, age_s: float) -> None:
    """The coordinator was away for days and comes back: nodes must find their way home."""
    assert renew(age_s).node_id == "n-abcdefghijkl"


def test_a_certificate_that_ended_more_than_seven_days_ago_is_refused(renew: Renew) -> None:
    """A laptop comes back from a long holiday."""
    with pytest.raises(RenewalRefusedError, match="more than 7 days"):
        renew(8 * DAY_S + HOUR_S)


def test_a_signature_by_another_key_is_refused(renew: Renew, make_key: "MakeKey") -> None:
    """Somebody found an old certificate (which is public) and has no key for it."""
    with pytest.raises(RenewalRefusedError, match="not signed by the old certificate's key"):
        renew(signature=sign(make_key().private, NONCE, b"csr"))


def test_a_signature_for_another_request_or_nonce_is_refused(renew: Renew, make_key: "MakeKey") -> None:
    """A recorded renewal is played again with the attacker's own key in the request."""
    with pytest.raises(RenewalRefusedError):
        renew(csr_pem=make_key().csr_pem)
    with pytest.raises(RenewalRefusedError):
        renew(nonce="cd" * 32)


@pytest.mark.parametrize("signature", ["", "%%%", base64.b64encode(b"\x00" * 70).decode()])
def test_a_signature_of_rubbish_is_refused(renew: Renew, signature: str) -> None:
    """A client sends anything."""
    with pytest.raises(RenewalRefusedError):
        renew(signature=signature)


def test_a_certificate_of_another_authority_is_refused(renew: Renew, foreign_authority: Authority) -> None:
    """A node of another cluster with the same names renews here."""
    with pytest.raises(RenewalRefusedError, match="not issued by this coordinator"):
        renew(by=foreign_authority)


def test_the_authority_itself_does_not_renew_as_a_node(renew: Renew, authority: Authority) -> None:
    """The authority's certificate, which everybody holds, is shown as the old one."""
    with pytest.raises(RenewalRefusedError):
        renew(certificate_pem=authority.certificate_pem)


def test_a_coordinator_certificate_does_not_renew_as_a_node(renew: Renew, server_file: "Path") -> None:
    """A coordinator's certificate is shown as the old one."""
    pem = server_file.read_bytes()
    certificate = pem[pem.index(b"-----BEGIN CERTIFICATE") :]
    with pytest.raises(RenewalRefusedError, match="only nodes"):
        renew(certificate_pem=certificate)


def test_a_removed_node_does_not_renew(renew: Renew, node: "NodeFiles") -> None:
    """`kernpool node rm` was typed; the machine tries to come back by renewal."""
    with pytest.raises(RevokedError):
        renew(revocations=Revocations([node.issued.subject.id]))
    with pytest.raises(RevokedError):
        renew(revocations=Revocations(serials=[node.issued.serial]))


@pytest.mark.parametrize(
    "pem", [b"", b"x" * 100_000, b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_a_damaged_certificate_is_refused(renew: Renew, pem: bytes) -> None:
    """A client sends anything."""
    with pytest.raises(RenewalRefusedError):
        renew(certificate_pem=pem)


def test_a_nonce_is_good_once_and_for_a_minute() -> None:
    """A recorded renewal is played again."""
    book = NonceBook()
    first, second = book.issue(0.0), book.issue(0.0)
    book.use(first, 59.0)
    for nonce, now in ((first, 59.0), (second, 60.0), ("never given", 0.0)):
        with pytest.raises(RenewalRefusedError):
            book.use(nonce, now)


def test_nonces_that_nobody_uses_stay_bounded() -> None:
    """A client asks for nonces in a loop."""
    book = NonceBook()
    for _ in range(NONCES_MAX):
        book.issue(0.0)
    with pytest.raises(RateLimitedError):
        book.issue(1.0)
    book.issue(61.0)


def test_clocks_that_differ_by_more_than_five_minutes_are_refused_naming_both() -> None:
    """A machine without NTP enrols: the person must see which clock is wrong."""
    check_clock_skew(1_800_000_300.0, 1_800_000_000.0)
    with pytest.raises(ClockSkewError) as error:
        check_clock_skew(1_800_000_000.0 - 301, 1_800_000_000.0)
    assert "2027-01-15 07:54:59 UTC" in str(error.value)
    assert "2027-01-15 08:00:00 UTC" in str(error.value)
    assert "behind" in str(error.value)


@pytest.mark.parametrize("node_unix_s", [float("inf"), 1e300, -1e300])
def test_an_absurd_clock_is_refused_with_a_sentence(node_unix_s: float) -> None:
    """A client sends any number as its time."""
    with pytest.raises(ClockSkewError):
        check_clock_skew(node_unix_s, 1_800_000_000.0)


def identity(now: float) -> Identity:
    return Identity("n-a", "kp-test", "1", now - HOUR_S, now + DAY_S, "cert", "ca")


@pytest.mark.parametrize(
    ("age_s", "phase"),
    [
        (0, IdentityPhase.FRESH),
        (11.9 * HOUR_S, IdentityPhase.FRESH),
        (12.1 * HOUR_S, IdentityPhase.DUE),
        (24 * HOUR_S, IdentityPhase.EXPIRED),
        (8 * DAY_S - 1, IdentityPhase.EXPIRED),
        (8 * DAY_S, IdentityPhase.DEAD),
    ],
)
def test_an_identity_goes_from_fresh_over_due_and_expired_to_dead(age_s: float, phase: IdentityPhase) -> None:
    """The life of a certificate that nobody renews."""
    assert identity(1000.0).phase(1000.0 + age_s) is phase


def test_renewals_of_many_nodes_spread_over_a_fifth_of_the_life() -> None:
    """Ten thousand nodes that were enrolled in the same minute must not renew in the same minute."""
    times = [renew_at_unix_s(0.0, 25 * HOUR_S, jitter) for jitter in (0.0, 0.5, 0.999999)]
    assert times[0] == pytest.approx(HOUR_S + 0.4 * DAY_S)
    assert times[1] == pytest.approx(HOUR_S + 0.5 * DAY_S)
    assert times[2] == pytest.approx(HOUR_S + 0.6 * DAY_S, rel=1e-4)


def test_the_part_of_life_that_is_left_goes_from_one_to_zero() -> None:
    """Health fails below a quarter."""
    assert identity(1000.0).life_left(1000.0) == 1.0
    assert identity(1000.0).life_left(1000.0 + 18 * HOUR_S) == 0.25
    assert identity(1000.0).life_left(1000.0 + 30 * HOUR_S) == 0.0
