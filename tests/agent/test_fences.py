"""The fence of each rank grows, and each attempt is started at most once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernpool_agent.errors import TransitionError
from kernpool_agent.fences import Fences, Offer, Phase
from kernpool_agent.records import Accepted, AttemptKey, Ended, Record, decode, encode
from kernpool_mesh.messages import Limits
from kernpool_mesh.reasons import EndReason


def accepted(fence: int, job: str = "j-1", index: int = 0) -> Accepted:
    return Accepted(AttemptKey(job, index, fence))


def ended(fence: int, job: str = "j-1", index: int = 0) -> Ended:
    return Ended(AttemptKey(job, index, fence), EndReason.EXITED)


def fences_with(*fences: int) -> Fences:
    table = Fences()
    for fence in fences:
        assert table.offer(accepted(fence)) is Offer.START
        table.commit(accepted(fence).key)
    return table


def restored(table: Fences) -> Fences:
    again = Fences()
    again.restore(r for record in table.snapshot() if (r := decode(encode(record))) is not None)
    return again


def test_a_repeated_start_is_a_duplicate() -> None:
    """The answer was lost with the link; the coordinator sends the same StartAttempt again."""
    assert fences_with(3).offer(accepted(3)) is Offer.DUPLICATE


def test_an_older_attempt_that_arrives_late_is_stale() -> None:
    """A partition heals and an old message comes out of some buffer."""
    assert fences_with(3).offer(accepted(2)) is Offer.STALE


def test_a_newer_attempt_may_start_and_names_what_it_supersedes() -> None:
    """The coordinator gave the node up, placed the rank anew, and chose the same node."""
    table = fences_with(3)
    assert table.offer(accepted(4)) is Offer.START
    assert table.superseded_by(accepted(4).key) == [accepted(3).key]


def test_a_withdrawn_reservation_leaves_no_trace() -> None:
    """The journal's disk was full: the coordinator may try the very same fence again later."""
    table = fences_with(3)
    assert table.offer(accepted(4)) is Offer.START
    table.withdraw(accepted(4).key)
    assert table.highest("j-1", 0) == 3
    assert table.offer(accepted(4)) is Offer.START


def test_the_first_word_about_an_end_stands() -> None:
    """A lost attempt whose record turns up later does not become an exited one: it was told already."""
    table = fences_with(1)
    assert table.end(ended(1))
    assert not table.end(Ended(accepted(1).key, EndReason.LOST))
    attempt = table.get(accepted(1).key)
    assert attempt is not None
    assert attempt.ended is not None
    assert attempt.ended.reason is EndReason.EXITED


def test_a_forgotten_fence_is_still_refused() -> None:
    """The job is deleted, and then a late StartAttempt of it comes."""
    table = fences_with(5)
    table.end(ended(5))
    table.ack(accepted(5).key)
    assert table.forget("j-1") == [accepted(5).key]
    assert table.get(accepted(5).key) is None
    assert table.offer(accepted(5)) is Offer.STALE
    assert restored(table).offer(accepted(4)) is Offer.STALE


def test_what_still_runs_is_not_forgotten() -> None:
    """ForgetJobs for a job whose other rank has not ended here."""
    table = fences_with(1)
    assert table.forget("j-1") == []
    assert table.get(accepted(1).key) is not None


def test_an_illegal_step_tells_the_history() -> None:
    """A bug of ours must name itself instead of corrupting the table."""
    table = fences_with(1)
    with pytest.raises(TransitionError, match=r"commit of j-1\[0\] attempt 1 while accepted; before: offer, commit"):
        table.commit(accepted(1).key)
    with pytest.raises(TransitionError, match="no such attempt"):
        table.commit(accepted(9).key)


def test_records_survive_their_bytes() -> None:
    """What is written today is read by the next version, and fields of a later one are ignored."""
    key = AttemptKey("j-7", 2, 3)
    records: list[Record] = [
        Accepted(key, Limits(100, 200, 300, 400), (0, 3), 12.5),
        Ended(key, EndReason.OOM, 137, "killed", 99, 1.0, 2.0),
    ]
    assert [decode(encode(record)) for record in records] == records
    assert decode(b"\x92\xcc\xc8\x01") is None, "an unknown kind is skipped"


JOBS = st.sampled_from(["j-1", "j-2"])
STEP = st.tuples(
    st.sampled_from(["start", "start", "start", "end", "ack", "forget", "crash", "compact"]),
    JOBS,
    st.integers(0, 1),
    st.integers(1, 5),
    st.booleans(),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(STEP, max_size=60))
def test_whatever_crashes_each_attempt_starts_at_most_once_and_fences_only_grow(
    steps: list[tuple[str, str, int, int, bool]],
) -> None:
    """Messages repeated and reordered, full disks, crashes with and without the last record, compactions between."""
    table = Fences()
    disk: list[bytes] = []
    runs: list[AttemptKey] = []
    for what, job, index, fence, lucky in steps:
        key = AttemptKey(job, index, fence)
        attempt = table.get(key)
        match what:
            case "start" if table.offer(Accepted(key)) is Offer.START:
                if lucky:
                    disk.append(encode(Accepted(key)))
                    table.commit(key)
                    runs.append(key)
                else:
                    table.withdraw(key)
            case "end" if attempt is not None and attempt.phase is Phase.ACCEPTED:
                table.end(Ended(key, EndReason.EXITED))
                if lucky:  # a note that the crash swallowed otherwise
                    disk.append(encode(Ended(key, EndReason.EXITED)))
            case "ack" if attempt is not None:
                table.ack(key)
            case "forget" if table.forget(job):
                disk.append(encode_forgotten(job))
            case "compact":
                disk = [encode(record) for record in table.snapshot()]
            case "crash":
                table = Fences()
                table.restore(r for data in disk if (r := decode(data)) is not None)
            case _:
                pass
    assert len(runs) == len(set(runs)), "an attempt was started twice"
    for rank in {(k.job_id, k.index) for k in runs}:
        fences = [k.fence for k in runs if (k.job_id, k.index) == rank]
        assert fences == sorted(fences), "an older attempt started after a newer one"


def encode_forgotten(job: str) -> bytes:
    from kernpool_agent.records import Forgotten

    return encode(Forgotten(job))
