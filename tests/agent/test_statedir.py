"""One agent to a state directory, and every start counted."""

import subprocess
import sys
from pathlib import Path

import pytest

from kernpool_agent.errors import FatalError, StateDirBusyError
from kernpool_agent.statedir import StateDir

HOLD = """
import sys
from pathlib import Path
from kernpool_agent.statedir import StateDir
held = StateDir.hold(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_agent_is_refused_naming_the_first(tmp_path: Path) -> None:
    """Two agents on one journal would start attempts twice."""
    arguments = [sys.executable, "-c", HOLD, str(tmp_path / "agent")]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"held\n"
        with pytest.raises(StateDirBusyError, match=f"held by the agent with pid {first.pid}; stop that one") as caught:
            StateDir.hold(tmp_path / "agent")
        assert caught.value.pid == first.pid
        first.kill()
    StateDir.hold(tmp_path / "agent").close()  # the lock died with its holder


def test_the_directory_is_private_and_starts_are_counted(tmp_path: Path) -> None:
    """A coordinator tells an old link of a node from a new one by the incarnation."""
    for number in (1, 2, 3):
        held = StateDir.hold(tmp_path / "agent")
        assert held.next_incarnation() == number
        held.close()
    assert (tmp_path / "agent").stat().st_mode & 0o777 == 0o700


def test_a_damaged_counter_is_told(tmp_path: Path) -> None:
    """It must not silently begin at 1 again: an older link would then win."""
    held = StateDir.hold(tmp_path)
    (tmp_path / "incarnation").write_text("many")
    with pytest.raises(FatalError, match="cannot count this start"):
        held.next_incarnation()
    held.close()


def test_a_directory_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    """A file stands where the directory should be."""
    (tmp_path / "agent").write_text("")
    with pytest.raises(FatalError, match="cannot use the state directory"):
        StateDir.hold(tmp_path / "agent")
