"""Secrets at rest."""

import stat
from pathlib import Path

import pytest

from kernpool_coordinator.errors import StoreError
from kernpool_coordinator.store import Seal


def test_the_key_file_is_made_once_and_only_for_us(tmp_path: Path) -> None:
    path = tmp_path / "key"
    sealed = Seal.from_file(path).seal({"TOKEN": "hunter2"}, "job/j-1")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Seal.from_file(path).open(sealed, "job/j-1") == {"TOKEN": "hunter2"}


def test_a_stolen_database_tells_nothing(tmp_path: Path) -> None:
    sealed = Seal.from_file(tmp_path / "key").seal({"TOKEN": "hunter2"}, "job/j-1")
    assert b"hunter2" not in sealed
    assert b"TOKEN" not in sealed
    with pytest.raises(StoreError, match="another key"):
        Seal.from_file(tmp_path / "other").open(sealed, "job/j-1")


def test_sealed_secrets_cannot_be_moved_to_another_job(tmp_path: Path) -> None:
    """Whoever can write to the database must not have job 2 start with the secrets of job 1."""
    seal = Seal.from_file(tmp_path / "key")
    with pytest.raises(StoreError):
        seal.open(seal.seal({"TOKEN": "x"}, "job/j-1"), "job/j-2")


@pytest.mark.parametrize("damage", [b"", b"\x01", b"\x02" + b"x" * 60])
def test_damaged_secrets_are_an_error(tmp_path: Path, damage: bytes) -> None:
    with pytest.raises(StoreError):
        Seal.from_file(tmp_path / "key").open(damage, "job/j-1")


def test_a_key_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"short")
    path.chmod(0o600)
    with pytest.raises(StoreError, match="key file"):
        Seal.from_file(path)


def test_a_key_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    Seal.from_file(path)
    path.chmod(0o644)
    with pytest.raises(StoreError):
        Seal.from_file(path)
