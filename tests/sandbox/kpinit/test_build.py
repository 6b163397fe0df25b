"""The program is built from its source, once, and again when the source changed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from kernpool_sandbox.kpinit import binary
from kernpool_sandbox.kpinit.errors import BuildError, KpInitError
from kernpool_sandbox.kpinit.launch import SpawnerConfig, default_runtime_dir, ensure_spawner, remove_runtime_dir
from kernpool_sandbox.kpinit.spawner import SpawnerClient


def test_the_program_is_found_and_speaks_our_protocol(kp_init: Path) -> None:
    """The agent starts what it finds."""
    done = subprocess.run([kp_init, "version"], capture_output=True, text=True, check=True)
    assert done.stdout == "kp-init protocol 1-1\n"
    assert binary.find() == kp_init


def test_a_missing_compiler_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newcomer without gcc reads the package's name, not a traceback of subprocess."""
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(BuildError, match="install gcc and libc6-dev"):
        binary.build(tmp_path / "kp-init")


def test_a_compiler_error_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cc said is what one needs to see."""
    monkeypatch.setattr(binary, "SOURCE_DIR", tmp_path)
    (tmp_path / "bad.c").write_text("int main(void) { return nonsense; }")
    with pytest.raises(BuildError, match="nonsense"):
        binary.build(tmp_path / "kp-init")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.c"]


def test_the_source_builds_for_arm64_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the world's cheap machines are arm64."""
    if shutil.which("aarch64-linux-gnu-gcc") is None:
        pytest.skip("no cross compiler: install gcc-aarch64-linux-gnu and libc6-dev-arm64-cross")
    monkeypatch.setenv("CC", "aarch64-linux-gnu-gcc")
    binary.build(tmp_path / "kp-init")
    assert (tmp_path / "kp-init").read_bytes()[18] == 183  # EM_AARCH64


async def test_a_spawner_is_started_once_and_outlives_its_starter(kp_init: Path, state_dir: Path) -> None:
    """Two commands at once must end up with one spawner, which belongs to neither."""
    config = SpawnerConfig(state_dir / "work")
    for _ in range(2):
        await ensure_spawner(config, kp_init, log_path=state_dir / "log")
    client = await SpawnerClient.connect(config.socket_path)
    assert client.state_dir == config.state_dir
    assert (config.state_dir / "s").resolve() == default_runtime_dir(config.state_dir)
    await client.stop()
    client.close()
    remove_runtime_dir(config)
    runtime = default_runtime_dir(config.state_dir)
    assert not runtime.exists() or runtime.parent == config.state_dir
    assert (state_dir / "log").read_text() == ""


async def test_a_spawner_that_cannot_start_shows_its_log(kp_init: Path, state_dir: Path) -> None:
    """A prefix that does not exist is found at the start, with its name."""
    config = SpawnerConfig(state_dir / "work", allow_sources=(Path("/no/such/prefix"),))
    with pytest.raises(KpInitError, match="/no/such/prefix: No such file"):
        await ensure_spawner(config, kp_init, log_path=state_dir / "log")


def test_the_small_files_lie_on_a_tmpfs_where_there_is_one(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk filesystem takes long to make a file where many were removed; another user's directory is not ours."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    chosen = default_runtime_dir(state_dir)
    assert chosen.name in {"s", chosen.name}
    assert chosen.name == "s" or chosen.name.startswith(f"kernpool-{os.geteuid()}-")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/no/such/dir")
    assert default_runtime_dir(state_dir) == chosen
