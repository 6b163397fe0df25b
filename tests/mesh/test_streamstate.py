"""The stream's phases and credit, without a link."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernpool_mesh.errors import CreditExceededError, StreamError, StreamStateError
from kernpool_mesh.streamstate import CREDIT_MAX, StreamEvent, StreamPhase, StreamState


def state(credit: int = 100) -> StreamState:
    return StreamState(2, send_credit=credit, receive_credit=credit)


@pytest.mark.parametrize("first", [StreamEvent.SEND_EOF, StreamEvent.RECEIVE_EOF])
def test_both_ends_in_either_order_close(first: StreamEvent) -> None:
    """An HTTP request that ends first on this side or on the other."""
    stream = state()
    second = StreamEvent.RECEIVE_EOF if first is StreamEvent.SEND_EOF else StreamEvent.SEND_EOF
    assert stream.apply(first) in {StreamPhase.LOCAL_ENDED, StreamPhase.REMOTE_ENDED}
    assert not stream.over
    assert stream.apply(second) is StreamPhase.CLOSED
    assert stream.over


def test_half_close_leaves_the_other_direction_open() -> None:
    """A client sent its whole request and reads the answer."""
    stream = state()
    stream.apply(StreamEvent.SEND_EOF)
    stream.receive(10)
    with pytest.raises(StreamStateError):
        stream.send(1)


@pytest.mark.parametrize("before", [[], [StreamEvent.SEND_EOF], [StreamEvent.RECEIVE_EOF]])
def test_a_reset_ends_every_open_phase(before: list[StreamEvent]) -> None:
    """A client goes away at any time."""
    stream = state()
    for event in before:
        stream.apply(event)
    assert stream.apply(StreamEvent.RESET) is StreamPhase.RESET
    assert stream.over


def test_an_event_out_of_order_raises_with_the_history() -> None:
    """A bug is found by the message alone."""
    stream = state()
    stream.apply(StreamEvent.RECEIVE_EOF)
    with pytest.raises(StreamStateError, match=r"stream 2 is remote_ended: receive_eof .* \(before: receive_eof\)"):
        stream.apply(StreamEvent.RECEIVE_EOF)
    with pytest.raises(StreamStateError, match="5 bytes from the other side"):
        stream.receive(5)


def test_a_peer_without_credit_is_told() -> None:
    """A peer that ignores credit would fill this side's memory."""
    stream = state(100)
    stream.receive(60)
    with pytest.raises(CreditExceededError, match="41 bytes with credit for 40"):
        stream.receive(41)


def test_credit_comes_back_in_halves_of_the_window() -> None:
    """A grant per chunk would double the frames."""
    stream = state(100)
    stream.receive(100)
    assert stream.consume(49) == 0
    assert stream.consume(1) == 50
    stream.receive(50)
    with pytest.raises(CreditExceededError):
        stream.receive(1)


def test_nothing_is_granted_after_the_peer_s_end() -> None:
    """A credit frame for a direction that is over would be noise."""
    stream = state(100)
    stream.receive(100)
    stream.apply(StreamEvent.RECEIVE_EOF)
    assert stream.consume(100) == 0


@pytest.mark.parametrize("grant", [0, -1, CREDIT_MAX])
def test_an_absurd_grant_is_refused(grant: int) -> None:
    """A peer grants nothing, less than nothing, or everything."""
    with pytest.raises(CreditExceededError):
        state(100).add_credit(grant)


actions = st.sampled_from(["send", "send", "consume", "consume", "eof", "reset"])
steps = st.lists(st.tuples(st.booleans(), actions, st.integers(1, 80)), max_size=80)


@settings(max_examples=300, deadline=None)
@given(steps)
def test_two_honest_sides_never_exceed_credit_nor_lose_it(taken: list[tuple[bool, str, int]]) -> None:
    """Any order of sends, reads, ends and resets of two sides that keep the rules."""
    left, right = state(100), state(100)
    unread = {id(left): 0, id(right): 0}
    for by_left, action, wanted in taken:
        one, other = (left, right) if by_left else (right, left)
        if action == "send" and one.can_send:
            size = min(wanted, one.send_credit)
            one.send(size)
            if other.can_receive:
                other.receive(size)
                unread[id(other)] += size
        elif action == "consume":
            size = min(wanted, unread[id(one)])
            unread[id(one)] -= size
            grant = one.consume(size)
            if grant and not other.over:
                other.add_credit(grant)
        elif action == "eof" and one.can_send:
            one.apply(StreamEvent.SEND_EOF)
            if other.can_receive:
                other.apply(StreamEvent.RECEIVE_EOF)
        elif action == "reset" and not one.over:
            one.apply(StreamEvent.RESET)
            if not other.over:
                other.apply(StreamEvent.RESET)
        assert unread[id(one)] + one.receive_credit <= 100
        if not one.over and not other.over:
            assert one.send_credit == other.receive_credit


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["receive", "credit", "eof", "send", "reset"]), st.integers(-5, 200)), max_size=40
    )
)
def test_a_hostile_peer_gets_typed_errors_only(events: list[tuple[str, int]]) -> None:
    """Frames in any order: the state raises a StreamError and stays as it was, or takes them."""
    stream = state(100)
    for what, size in events:
        before = (stream.phase, stream.send_credit, stream.receive_credit)
        try:
            match what:
                case "receive":
                    stream.receive(max(0, size))
                case "credit":
                    stream.add_credit(size)
                case "send":
                    stream.send(max(0, size))
                case "eof":
                    stream.apply(StreamEvent.RECEIVE_EOF)
                case _:
                    stream.apply(StreamEvent.RESET)
        except StreamError:
            assert before == (stream.phase, stream.send_credit, stream.receive_credit)
        assert stream.send_credit >= 0
        assert stream.receive_credit >= 0
