"""What becomes of what an earlier agent left."""

import pytest

from kernpool_mesh.reasons import EndReason
from kernpool_sandbox import slots
from kernpool_sandbox.journal import Claim, SlotRecord
from kernpool_sandbox.kpinit.record import EndCause, EndRecord
from kernpool_sandbox.reconcile import (
    Adopt,
    AdoptUnknown,
    End,
    Found,
    RemoveCgroup,
    SlotFacts,
    end_reason,
    reconcile,
)

NAME = "aaaaaaa.1-5-c7"
CLAIM = Claim("sb-1", 60.0, 0.0, 100.0, 160.0, parked=True)
PARKED = SlotRecord(NAME, "k", "c7", 5, 2)
CLAIMED = SlotRecord(NAME, "k", "c7", 5, 2, CLAIM)


def decide(record: SlotRecord | None, facts: SlotFacts | None, *, same_boot: bool = True) -> list[object]:
    journal = {NAME: record} if record is not None else {}
    found = {NAME: facts} if facts is not None else {}
    return list(reconcile(journal, found, {"c7"}, same_boot=same_boot))


def test_a_handed_out_one_that_answers_is_adopted() -> None:
    """The agent was upgraded while 200 sandboxes ran."""
    assert decide(CLAIMED, SlotFacts(Found.CLAIMED)) == [Adopt(CLAIMED)]


def test_one_whose_hand_out_was_cut_is_ended_as_lost() -> None:
    """kill -9 between the journal's record and the claim: nobody was told of it."""
    [end] = decide(CLAIMED, SlotFacts(Found.PARKED))
    assert isinstance(end, End)
    assert (end.reason, end.kill) == (EndReason.LOST, True)


@pytest.mark.parametrize("found", [Found.PARKED, Found.SILENT])
def test_parked_ones_are_ended_and_made_anew(found: Found) -> None:
    """What an older agent parked may not be what this one would park."""
    assert decide(PARKED, SlotFacts(found)) == [End(NAME, PARKED, None, "", kill=True)]
    assert decide(None, SlotFacts(found)) == [End(NAME, None, None, "", kill=True)]


@pytest.mark.parametrize("record", [None, PARKED])
def test_a_living_one_is_never_killed_for_not_being_known(record: SlotRecord | None) -> None:
    """The journal was on a disk that died; the user's work was not. Its cgroup is left alone, too."""
    assert decide(record, SlotFacts(Found.CLAIMED)) == [AdoptUnknown(NAME)]


def test_a_dead_one_is_told_with_the_reason_of_its_record() -> None:
    """Its deadline passed while no agent was there."""
    facts = SlotFacts(Found.DEAD, EndRecord(EndCause.TTL, 1))
    [end] = decide(CLAIMED, facts)
    assert isinstance(end, End)
    assert (end.reason, end.kill) == (EndReason.TTL, False)


def test_a_dead_one_without_a_record_was_killed_by_oom_if_the_counter_says_so() -> None:
    """PID 1 was the victim; the counter had stood at 2 before."""
    [end] = decide(CLAIMED, SlotFacts(Found.DEAD, None, oom_kills=3))
    assert isinstance(end, End)
    assert end.reason is EndReason.OOM
    [end] = decide(CLAIMED, SlotFacts(Found.DEAD, None, oom_kills=2))
    assert isinstance(end, End)
    assert end.reason is EndReason.LOST


def test_after_a_restart_of_the_node_all_are_lost() -> None:
    """Power failure."""
    [end] = decide(CLAIMED, None, same_boot=False)
    assert isinstance(end, End)
    assert (end.reason, end.detail) == (EndReason.LOST, "the node was restarted")


def test_a_cgroup_that_serves_nothing_is_removed() -> None:
    """A spare one, or one whose sandbox was never cloned."""
    assert list(reconcile({}, {}, {"c1", "c9"}, same_boot=True)) == [RemoveCgroup("c1"), RemoveCgroup("c9")]


def test_every_found_state_of_every_record_has_a_decision() -> None:
    """The table in docs/sandbox.md has no hole."""
    for record in (None, PARKED, CLAIMED):
        for found in Found:
            decisions = decide(record, SlotFacts(found))
            assert len(decisions) == 1, (record, found)


@pytest.mark.parametrize(
    ("end", "oom_kills", "reason"),
    [
        (EndRecord(EndCause.TTL, 1), 1, EndReason.TTL),
        (EndRecord(EndCause.ORPHANED, 1), 0, EndReason.LOST),
        (EndRecord(EndCause.KILLED, 1), 0, EndReason.CANCELLED),
        (EndRecord(EndCause.SHUTDOWN, 1), 0, EndReason.CANCELLED),
        (EndRecord(EndCause.SETUP_FAILED, 1, 0, "mount"), 0, EndReason.START_FAILED),
        (EndRecord(EndCause.DIED, 1, 9), 1, EndReason.OOM),
        (EndRecord(EndCause.DIED, 1, 9), 0, EndReason.KILLED),
        (EndRecord(EndCause.DIED, 1, 256), 0, EndReason.KILLED),
        (None, 1, EndReason.OOM),
        (None, 0, EndReason.LOST),
    ],
)
def test_every_end_has_one_reason(end: EndRecord | None, oom_kills: int, reason: EndReason) -> None:
    """No bare "failed"."""
    assert end_reason(end, oom_kills)[0] is reason


def test_a_slots_name_tells_its_parts_and_is_never_used_twice() -> None:
    """With the journal gone the name alone says what to give back."""
    names = slots.SlotNames()
    made = {names.new(5, "c7") for _ in range(100)}
    assert len(made) == 100
    assert all(slots.parse(name) == slots.SlotParts(5, "c7") for name in made)
    assert slots.parse(names.new(-1, "")) == slots.SlotParts(-1, "")
    assert slots.parse("somebody-elses-file") == slots.SlotParts(-1, "")
    assert slots.SlotNames().new(0, "") != slots.SlotNames().new(0, "")
