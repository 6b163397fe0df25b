"""Decisions without I/O: when to try again, which way to a node, where a log goes on."""

import pytest

from kernpool.protocol.logs import LogPosition
from kernpool.protocol.retries import Retries, TransportError
from kernpool.protocol.routes import TUNNEL, TUNNEL_MEMORY_S, Direct, Routes
from kernpool.results import Access

REFUSED = TransportError("refused", sent=False)
BROKE = TransportError("broke", sent=True)


def test_a_repeatable_call_is_tried_a_few_times_with_growing_pauses() -> None:
    retries = Retries(repeatable=True, deadline_s=100.0, random=lambda: 1.0)
    assert [retries.after_error(BROKE, 0.0) for _ in range(4)] == [0.05, 0.2, 0.8, None]


def test_a_call_that_may_have_been_done_is_never_repeated() -> None:
    retries = Retries(repeatable=False, deadline_s=100.0, random=lambda: 1.0)
    assert retries.after_error(REFUSED, 0.0) == 0.05
    assert retries.after_error(BROKE, 0.0) is None


def test_no_pause_goes_beyond_the_deadline() -> None:
    assert Retries(repeatable=True, deadline_s=1.0, random=lambda: 0.0).after_error(REFUSED, 0.99) is None


@pytest.mark.parametrize(
    ("status", "header", "pause_s"),
    [(503, "1", 1.0), (429, "0", 0.05), (503, None, None), (500, "1", None), (503, "3600", None), (503, "soon", 0.05)],
)
def test_the_server_may_ask_for_another_try(status: int, header: str | None, pause_s: float | None) -> None:
    retries = Retries(repeatable=True, deadline_s=100.0, random=lambda: 1.0)
    assert retries.after_status(status, header, 0.0) == pause_s


def access(*urls: str, expires_in_s: float = 300.0) -> Access:
    return Access(urls, "n-1.node.kernpool.internal", "PEM", "kpd1.x", expires_in_s)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_node_is_reached_straight_and_remembered() -> None:
    clock = Clock()
    routes = Routes(use_direct=True, clock=clock)
    assert routes.known("sandbox/a", "n-1") is None
    way = routes.granted("sandbox/a", "n-1", access("https://10.0.0.1:1", "https://10.0.0.2:1"))
    assert isinstance(way, Direct)
    assert way.url == "https://10.0.0.1:1"
    assert routes.known("sandbox/a", "n-1") == way
    assert routes.known("sandbox/b", "n-1") is None, "each object has a token of its own"
    clock.now_s = 286.0
    assert routes.known("sandbox/a", "n-1") is None, "the token is about to end"


def test_each_url_is_tried_once_then_the_coordinator_for_a_while() -> None:
    """A laptop in a cafe: the node's addresses are of another network."""
    clock = Clock()
    routes = Routes(use_direct=True, clock=clock)
    both = access("https://10.0.0.1:1", "https://10.0.0.2:1", expires_in_s=3000)
    tried = []
    way = routes.granted("sandbox/a", "n-1", both)
    while isinstance(way, Direct):
        tried.append(way.url)
        routes.unreachable(way)
        known = routes.known("sandbox/a", "n-1")
        assert known is not None
        way = known
    assert tried == ["https://10.0.0.1:1", "https://10.0.0.2:1"]
    assert routes.known("sandbox/b", "n-1") is TUNNEL, "other sandboxes of that node need not try"
    assert routes.known("sandbox/c", "n-2") is None, "another node may be near"
    clock.now_s = TUNNEL_MEMORY_S + 1
    assert isinstance(routes.known("sandbox/a", "n-1"), Direct), "networks change: try again"


def test_a_refused_token_is_forgotten_and_no_grant_means_the_coordinator() -> None:
    routes = Routes(use_direct=True, clock=Clock())
    routes.granted("sandbox/a", "n-1", access("https://10.0.0.1:1"))
    routes.forget("sandbox/a")
    assert routes.known("sandbox/a", "n-1") is None
    assert routes.not_granted("n-1") is TUNNEL
    assert routes.known("sandbox/a", "n-1") is TUNNEL
    assert Routes(use_direct=False, clock=Clock()).known("sandbox/a", "n-1") is TUNNEL
    assert "kpd1" not in repr(Direct("n-1", "https://x", "s", "PEM", "kpd1.x"))


def test_a_log_goes_on_at_its_offset_and_counts_what_was_lost() -> None:
    position = LogPosition("j-1", index=0, offset=0, follow=True, tail=5)
    assert position.path(direct=False) == "/jobs/j-1/logs?follow=1&tail=5"
    assert position.path(direct=True) == "/jobs/j-1/0/logs?follow=1&tail=5"
    assert position.begin({"kp-log-offset": "1000"}) == 0
    position.advance(24)
    assert position.path(direct=True) == "/jobs/j-1/0/logs?offset=1024&follow=1", "the tail counts once"
    assert position.begin({"kp-log-offset": "1100"}) == 76
    assert position.begin({"kp-log-offset": "nonsense"}) == 0
    assert position.lost_bytes == 76


def test_a_log_that_only_breaks_is_given_up_and_bytes_give_new_hope() -> None:
    position = LogPosition("j-1", index=0, offset=0, follow=True, tail=None)
    pauses = [position.broke() for _ in range(9)]
    assert pauses[:3] == [0.1, 0.2, 0.4]
    assert pauses[-1] is None
    position.advance(1)
    assert position.broke() == 0.1


def test_a_log_goes_on_with_the_next_attempt_until_the_job_is_over() -> None:
    """A job whose node was lost starts again elsewhere while somebody follows its log."""
    position = LogPosition("j-1", index=2, offset=0, follow=True, tail=5)
    position.begin({"kp-log-offset": "10", "kp-log-fence": "1"})
    position.advance(90)
    restarts = [position.is_restart]
    assert position.ended()
    assert position.path(direct=False) == "/jobs/j-1/logs?index=2&follow=1&fence=1"
    assert position.needs_coordinator
    assert position.begin({"kp-log-offset": "0", "kp-log-fence": "2"}) == 0
    restarts.append(position.is_restart)
    position.advance(7)
    assert position.begin({"kp-log-offset": "7", "kp-log-fence": "2"}) == 0, "a cut"
    restarts.append(position.is_restart)
    assert restarts == [False, True, False]
    assert position.ended()
    position.begin({"kp-log-offset": "0", "kp-log-fence": "2"})
    assert position.is_over
    assert not position.ended()


def test_without_following_one_attempt_is_all() -> None:
    position = LogPosition("j-1", index=0, offset=0, follow=False, tail=None)
    position.begin({"kp-log-offset": "0", "kp-log-fence": "1"})
    assert not position.ended()
