"""The life of a sandbox as a machine without I/O."""

import pytest

from kernpool_mesh.messages import SandboxState, Template
from kernpool_mesh.reasons import EndReason
from kernpool_sandbox.errors import IllegalTransitionError, SandboxNotFoundError
from kernpool_sandbox.lifecycle import (
    Event,
    Failed,
    InitGone,
    KillSlot,
    Phase,
    Ready,
    Released,
    ReleaseSlot,
    RemoveAsked,
    Report,
    Sandbox,
    SandboxTable,
)

READY = Ready("slot", parked=True, started_unix_s=100.0)
REMOVE = RemoveAsked(EndReason.CANCELLED)
DIED = InitGone(EndReason.TTL, "its time to live passed")


def table_with(*ids: str) -> SandboxTable:
    table = SandboxTable(ended_max=3)
    for one in ids:
        table.add(Sandbox(one, "key", Template(), {"team": "rl"}, "default", "ada", ttl_s=60, idle_s=0))
    return table


def play(table: SandboxTable, *events: Event) -> list[object]:
    return [instruction for event in events for instruction in table.handle("a", event)]


def test_a_sandbox_starts_runs_and_ends_by_its_deadline() -> None:
    """The ordinary life."""
    table = table_with("a")
    assert table.get("a").status().state is SandboxState.STARTING
    assert play(table, READY) == [Report("a")]
    status = table.get("a").status()
    assert (status.state, status.parked, status.expires_unix_s) == (SandboxState.RUNNING, True, 160.0)
    assert play(table, DIED) == [ReleaseSlot("slot")]
    assert play(table, Released()) == [Report("a")]
    status = table.get("a").status()
    assert (status.state, status.reason) == (SandboxState.ENDED, EndReason.TTL)
    assert list(table.living()) == []


def test_a_delete_wins_over_a_create_in_flight() -> None:
    """A trainer gives up and deletes all its sandboxes while the last ones are still being made."""
    table = table_with("a")
    assert play(table, REMOVE) == []
    assert play(table, READY) == [KillSlot("slot")]
    assert table.get("a").phase is Phase.ENDING
    assert play(table, InitGone(EndReason.KILLED)) == [ReleaseSlot("slot")]
    assert play(table, Released()) == [Report("a")]
    assert table.get("a").reason is EndReason.CANCELLED


def test_a_delete_of_one_that_then_cannot_be_made_ends_it() -> None:
    """The node's disk is full, and the owner has already given up."""
    table = table_with("a")
    assert play(table, REMOVE, Failed(EndReason.START_FAILED, "no")) == [Report("a")]
    assert table.get("a").reason is EndReason.CANCELLED


def test_the_first_reason_stands() -> None:
    """The owner removes it in the same moment in which its deadline passes: one reason is told, not two."""
    table = table_with("a")
    assert play(table, READY, REMOVE) == [Report("a"), KillSlot("slot")]
    assert play(table, REMOVE, RemoveAsked(EndReason.IDLE)) == []
    play(table, DIED, Released())
    assert table.get("a").reason is EndReason.CANCELLED
    assert play(table, REMOVE) == []


def test_a_failed_create_is_told_with_its_reason() -> None:
    """The caller's error and the listing say the same."""
    table = table_with("a")
    assert play(table, Failed(EndReason.START_FAILED, "no cgroup")) == [Report("a")]
    assert table.get("a").status().detail == "no cgroup"


@pytest.mark.parametrize("event", [READY, Failed(EndReason.LOST, ""), DIED, Released()])
def test_an_event_that_an_ended_sandbox_cannot_have_is_told_with_its_story(event: Event) -> None:
    """A fault of ours must be found where it happens, not as a wrong status later."""
    table = table_with("a")
    play(table, READY, DIED, Released())
    with pytest.raises(IllegalTransitionError, match="starting Ready; running InitGone; ending Released"):
        table.handle("a", event)


def test_only_the_last_ended_ones_are_remembered() -> None:
    """A node that makes a million sandboxes must not remember a million."""
    table = table_with("a", "b", "c", "d", "e")
    for one in "abcde":
        table.handle(one, Failed(EndReason.START_FAILED, one))
    assert [sandbox.sandbox_id for sandbox in table.ended()] == ["c", "d", "e"]
    with pytest.raises(SandboxNotFoundError, match="there is no sandbox a"):
        table.get("a")
