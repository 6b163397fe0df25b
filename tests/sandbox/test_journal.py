"""The journal of what a node made."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernpool_mesh.messages import Limits, Template
from kernpool_mesh.reasons import EndReason
from kernpool_sandbox.errors import TemplateError
from kernpool_sandbox.journal import Claim, Journal, SlotRecord, replay

TEMPLATE = Template(image="/images/a", limits=Limits(500, 64, 32, 10), env={"A": "b"}, allow_setuid=True)
CLAIM = Claim("sb-1", 60.0, 5.0, 100.0, 160.0, parked=True, labels={"team": "rl"}, workspace="w", owner="ada")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    journal = Journal(path, "boot-1")
    yield journal
    journal.close()


def write_some(journal: Journal) -> None:
    journal.template("k", TEMPLATE)
    journal.slot(SlotRecord("s1", "k", "c1", 1, 0))
    journal.slot(SlotRecord("s2", "k", "c2", 2, 7))
    journal.claim("s2", CLAIM)
    journal.slot(SlotRecord("s3", "k", "c3", 3, 0))
    journal.claim("s3", Claim("sb-3", 1.0, 0.0, 0.0, 1.0, parked=False))
    journal.gone("s3", EndReason.OOM, "too much", 99.0)
    journal.extend("s2", 600.0, 760.0)
    journal.gone("s1", None, "", 98.0)


def reopen(path: Path) -> Journal:
    again = Journal(path, "boot-1")
    again.close()
    return again


def test_everything_written_is_known_again(path: Path, journal: Journal) -> None:
    """The agent was killed and comes back."""
    write_some(journal)
    state = reopen(path).state
    assert state == journal.state
    assert state.templates == {"k": TEMPLATE}
    assert list(state.slots) == ["s2"]
    claim = state.slots["s2"].claim
    assert claim is not None
    assert (claim.sandbox_id, claim.ttl_s, claim.expires_unix_s, claim.labels) == ("sb-1", 600.0, 760.0, {"team": "rl"})
    assert state.slots["s2"].oom_kills_before == 7
    ended = state.ended["sb-3"]
    assert (ended.reason, ended.detail, ended.template) == (EndReason.OOM, "too much", TEMPLATE)


def test_a_torn_tail_is_cut_off_and_writing_goes_on(path: Path, journal: Journal) -> None:
    """The power failed in the midst of a write."""
    write_some(journal)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[-20:-3])
    again = Journal(path, "boot-1")
    again.slot(SlotRecord("s9", "k", "c9", 9, 0))
    again.close()
    assert path.read_bytes()[: len(whole)] == whole
    assert set(reopen(path).state.slots) == {"s2", "s9"}


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 2000))
def test_no_garbage_stops_the_agent_from_starting(garbage: bytes, cut: int) -> None:
    """A disk gave back other bytes than were written."""
    state, good = replay(garbage)
    assert good <= len(garbage)
    records = [[0, 1, "boot"], [2, "s1", "k", "c1", 1, 0], [3, "s1", ["sb-1", 1.0, 0.0, 0.0, 1.0, True, {}, "w", "o"]]]
    data = b"".join(msgpack.packb(record) for record in records)
    state, good = replay(data[:cut] + garbage)
    assert good <= len(data[:cut]) + len(garbage)
    if cut >= len(data):
        assert state.boot_id


def test_records_of_a_later_version_are_passed_over(path: Path, journal: Journal) -> None:
    """The agent was downgraded."""
    write_some(journal)
    path.write_bytes(
        path.read_bytes() + msgpack.packb([99, "new", {"thing": 1}]) + msgpack.packb([5, "s2", "ttl", "", 1.0])
    )
    state = reopen(path).state
    assert state.slots == {}
    assert state.ended["sb-1"].reason is EndReason.TTL


def test_a_rewritten_journal_says_the_same_in_fewer_bytes(path: Path, journal: Journal) -> None:
    """After a million sandboxes the file is as small as after ten."""
    write_some(journal)
    for number in range(200):
        journal.slot(SlotRecord(f"x{number}", "k", "c", 5, 0))
        journal.gone(f"x{number}", None, "", 1.0)
    before = path.stat().st_size
    journal.compact()
    assert path.stat().st_size < before / 4
    assert reopen(path).state.slots == journal.state.slots
    assert reopen(path).state.ended.keys() == journal.state.ended.keys()
    assert reopen(path).state.ended["sb-3"].template == TEMPLATE
    journal.slot(SlotRecord("later", "k", "c4", 4, 0))
    assert "later" in reopen(path).state.slots


def test_it_is_rewritten_by_itself(path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody calls compact by hand."""
    journal.template("k", TEMPLATE)
    for number in range(30_000):
        journal.slot(SlotRecord(f"x{number}", "k", "c", 5, 0))
        journal.gone(f"x{number}", None, "", 1.0)
    assert path.stat().st_size < 1_200_000


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from kernpool_sandbox.errors import JournalFullError
from kernpool_sandbox.journal import Journal, SlotRecord, Claim
from kernpool_mesh.messages import Template
from kernpool_mesh.reasons import EndReason
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])
journal = Journal(path, "boot")
journal.template("k", Template())
journal.slot(SlotRecord("s0", "k", "c0", 0, 0))
size = path.stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, resource.RLIM_INFINITY))
try:
    journal.slot(SlotRecord("s1", "k", "c1", 1, 0))
except JournalFullError as error:
    print(error)
assert path.stat().st_size == size, "half a record was left"
assert "s1" not in journal.state.slots
journal.gone("s0", None, "", 1.0)
assert "s0" not in journal.state.slots
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
journal.slot(SlotRecord("s2", "k", "c2", 2, 0))
journal.close()
"""


def test_a_full_disk_refuses_new_records_whole_and_remembers_ends(path: Path) -> None:
    """The disk under the agent's state is full: no new sandbox, but what ends is still known to have ended."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "is full, so no sandbox can be started" in done.stdout
    assert list(reopen(path).state.slots) == ["s2"]


def test_a_record_beyond_the_bound_is_refused(journal: Journal) -> None:
    """Labels of a megabyte would make every start slow."""
    journal.slot(SlotRecord("s1", "k", "c1", 1, 0))
    with pytest.raises(TemplateError, match="over the bound"):
        journal.claim("s1", Claim("sb", 1.0, 0.0, 0.0, 1.0, parked=False, labels={"a": "x" * 70_000}))


def test_a_new_boot_is_written_down_once_the_old_one_is_settled(path: Path, journal: Journal) -> None:
    """The node was restarted; its journal still tells what it had."""
    write_some(journal)
    again = Journal(path, "boot-2")
    assert again.state.boot_id == "boot-1"
    again.gone("s2", EndReason.LOST, "the node was restarted", 1.0)
    again.begin_boot("boot-2")
    again.close()
    state = reopen(path).state
    assert (state.boot_id, state.slots) == ("boot-2", {})
    assert state.ended["sb-1"].reason is EndReason.LOST
