"""Bounds on long answers and on tries."""

import pytest

from kernpool_coordinator.errors import BusyError
from kernpool_coordinator.http.limits import RateLimit, StreamLimits


def test_one_token_cannot_take_all_streams() -> None:
    """A script that leaks followers is refused; others go on."""
    limits = StreamLimits(all_max=3, per_token_max=2)
    with limits.hold("a"), limits.hold("a"):
        with pytest.raises(BusyError, match="This token has 2 streams"), limits.hold("a"):
            pass
        with limits.hold("b"), pytest.raises(BusyError, match="serves 3 streams"), limits.hold("c"):
            pass
    assert limits.running == 0


def test_a_failed_stream_gives_its_place_back() -> None:
    """An answer that broke must not count for ever."""
    limits = StreamLimits(all_max=1, per_token_max=1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), limits.hold("a"):
            raise ZeroDivisionError
    assert limits.running == 0


def test_a_rate_refills_with_time_and_each_key_has_its_own() -> None:
    """One address that hammers is refused; another enrols."""
    now_s = 0.0
    limit = RateLimit(60, clock=lambda: now_s)
    assert [limit.take("a") for _ in range(61)].count(True) == 60
    assert limit.take("b")
    now_s = 2.0
    assert [limit.take("a") for _ in range(3)] == [True, True, False]


def test_a_flood_of_addresses_takes_bounded_memory() -> None:
    """IPv6 gives an attacker as many addresses as wanted."""
    limit = RateLimit(60, clock=lambda: 0.0, keys_max=100)
    for number in range(10_000):
        limit.take(str(number))
    assert len(limit._buckets) == 100
