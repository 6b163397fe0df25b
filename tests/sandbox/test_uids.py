"""Ranges of host uids."""

from pathlib import Path

import pytest

from kernpool_sandbox.errors import NoCapacityError
from kernpool_sandbox.uids import RANGE_UIDS, UID_BASE, UidRanges, reserved_on_host, subordinate_range


def test_two_living_sandboxes_never_share_a_range() -> None:
    """Files and processes of one must be nobody's in the other."""
    uids = UidRanges()
    taken = {uids.take() for _ in range(500)}
    assert len(taken) == 500
    assert uids.start(0) == UID_BASE
    assert uids.start(1) - uids.start(0) == RANGE_UIDS


def test_a_range_rests_until_all_others_were_used() -> None:
    """What a removed sandbox may have left somewhere must not soon belong to another."""
    uids = UidRanges(end=UID_BASE + 3 * RANGE_UIDS)
    first = uids.take()
    uids.give_back(first)
    assert [uids.take(), uids.take(), uids.take()] == [1, 2, first]
    with pytest.raises(NoCapacityError, match="all 3 uid ranges"):
        uids.take()


def test_an_adopted_range_is_not_given_again() -> None:
    """The agent came back; its sandboxes kept their uids."""
    uids = UidRanges(end=UID_BASE + 3 * RANGE_UIDS)
    uids.adopt(0)
    uids.adopt(2)
    assert uids.take() == 1
    uids.give_back(2)
    uids.give_back(2)
    assert uids.take() == 2
    assert uids.in_use == 3


def test_ranges_of_others_on_this_host_are_left_alone(tmp_path: Path) -> None:
    """A directory service or rootless podman owns some of these uids."""
    (tmp_path / "passwd").write_text(f"root:x:0:0::/root:/bin/sh\nldap:x:{UID_BASE + 10}:5::/:/bin/sh\n+::::::\n")
    (tmp_path / "group").write_text("broken line\nstaff:x:50:\n")
    (tmp_path / "subuid").write_text(f"# comment\nada:{UID_BASE + RANGE_UIDS + 5}:65536\n")
    uids = UidRanges(reserved=reserved_on_host(tmp_path))
    assert [uids.take(), uids.take()] == [3, 4]


def test_a_base_that_would_straddle_ranges_is_refused() -> None:
    """A typing error in the configuration."""
    with pytest.raises(ValueError, match="not a multiple of 65536; use 983040"):
        UidRanges(base=1_000_000)


def test_a_users_subordinate_range_is_found_by_name_or_number(tmp_path: Path) -> None:
    """newuidmap reads the same file."""
    file = tmp_path / "subuid"
    file.write_text("bob:100000:1000\n1001:200000:65536\n")
    assert subordinate_range(["ada", "1001"], file) == range(200000, 265536)
    assert subordinate_range(["bob"], file) is None
    assert subordinate_range(["ada"], tmp_path / "none") is None
