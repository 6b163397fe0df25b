"""The process: how it starts, what it refuses to start with, how it stops, and what it leaves."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
ROOMS = ("agent", "client", "coordinator", "mesh", "sandbox", "tls")
POLL_S = 0.02
PATH = os.pathsep.join([*(str(ROOT / room) for room in ROOMS), os.environ.get("PYTHONPATH", "")])


class Process:
    """A coordinator in a process of its own."""

    def __init__(self, state_dir: Path, *flags: str, env: dict[str, str] | None = None) -> None:
        self.state_dir = state_dir
        self.log = state_dir.parent / f"{state_dir.name}.log"
        listen = ("--api-listen=127.0.0.1:0", "--node-listen=127.0.0.1:0")
        command = [sys.executable, "-m", "kernpool_coordinator", f"--state-dir={state_dir}", *listen, *flags]
        with self.log.open("ab") as log:
            self.popen = subprocess.Popen(command, stderr=log, env={**os.environ, "PYTHONPATH": PATH, **(env or {})})

    @property
    def endpoint_file(self) -> Path:
        return self.state_dir / "endpoint.json"

    def wait_listening(self) -> dict[str, Any]:
        deadline_s = time.monotonic() + 30
        while time.monotonic() < deadline_s:
            assert self.popen.poll() is None, self.log.read_text()
            if self.endpoint_file.exists():
                return dict(json.loads(self.endpoint_file.read_text()))
            time.sleep(POLL_S)
        raise AssertionError(self.log.read_text())

    def get(self, path: str) -> Any:
        request = urllib.request.Request(json.loads(self.endpoint_file.read_text())["url"] + path)
        request.add_header("Authorization", "Bearer " + (self.state_dir / "admin-token").read_text().strip())
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def refused(self) -> tuple[int, str]:
        """Exit status and the words of a coordinator that would not start."""
        return self.popen.wait(30), self.log.read_text()

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.popen.send_signal(number)
        return self.popen.wait(20)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Runs coordinators; whatever is left of them is killed at the end."""
    processes: list[Process] = []

    def begin(*flags: str, name: str = "state", env: dict[str, str] | None = None) -> Process:
        processes.append(Process(tmp_path / name, *flags, env=env))
        return processes[-1]

    yield begin
    for process in processes:
        if process.popen.poll() is None:
            process.popen.kill()
        process.popen.wait()


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_first_start_makes_everything_private_and_a_stop_is_quick_and_clean(run: Any) -> None:
    """A fresh machine; then `systemctl stop`."""
    process = run()
    endpoint = process.wait_listening()
    assert endpoint["ca_pin"] == process.get("/api/v1/info")["ca_pin"]
    assert _mode(process.state_dir) == 0o700
    for name in ("admin-token", "endpoint.json", "key", "coordinator.pid", "ca/authority", "ca/server.pem"):
        assert _mode(process.state_dir / name) == 0o600, name
    started_s = time.monotonic()
    assert process.stop() == 0
    assert time.monotonic() - started_s < 5
    assert not process.endpoint_file.exists()
    assert "Traceback" not in process.log.read_text()


def test_after_a_kill_it_starts_again_as_the_same(run: Any) -> None:
    """kill -9, power loss: same cluster, same authority, same token."""
    process = run()
    process.wait_listening()
    before = process.get("/api/v1/info")
    token = (process.state_dir / "admin-token").read_text()
    process.stop(signal.SIGKILL)
    process.endpoint_file.unlink()
    again = run()
    again.wait_listening()
    after = again.get("/api/v1/info")
    assert (after["cluster_id"], after["ca_pin"]) == (before["cluster_id"], before["ca_pin"])
    assert (again.state_dir / "admin-token").read_text() == token


def test_a_second_one_on_the_same_directory_is_refused_with_the_pid(run: Any) -> None:
    """Two people start it."""
    first = run()
    first.wait_listening()
    status, words = run().refused()
    assert status == 4
    assert f"is in use by the coordinator with pid {first.popen.pid}" in words
    assert first.get("/api/v1/health")["status"] == "ok"


@pytest.mark.parametrize("flag", ["--api-listen", "--node-listen"])
def test_a_port_in_use_is_one_sentence_and_status_3(run: Any, flag: str) -> None:
    """Another program has it; nothing is left behind that would hinder the next start."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        status, words = run(f"{flag}=127.0.0.1:{taken.getsockname()[1]}").refused()
        assert status == 3
        assert words.count("\n") == 1
        assert f"already listens on 127.0.0.1:{taken.getsockname()[1]}" in words
        assert flag in words
    run().wait_listening()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--api-listen=nonsense"], "`api_listen` is `nonsense`, expected HOST:PORT"),
        (["--api-listen=198.51.100.7:0"], "cannot listen there"),
        (["--api-listen=no.such.host.invalid:0"], "cannot be resolved"),
        (["--config=/nonexistent.toml"], "Cannot read the configuration"),
    ],
)
def test_a_wrong_setting_is_one_sentence_and_status_2(run: Any, flags: list[str], words: str) -> None:
    """Typos on the command line."""
    status, said = run(*flags).refused()
    assert status == 2
    assert words in said
    assert "Traceback" not in said


def test_an_unknown_key_in_the_file_is_refused(run: Any, tmp_path: Path) -> None:
    """The near match is told."""
    (tmp_path / "c.toml").write_text("stream_max = 5\n")
    status, words = run(f"--config={tmp_path / 'c.toml'}").refused()
    assert status == 2
    assert "unknown setting `stream_max`; did you mean `streams_max`?" in words


def test_a_state_directory_that_cannot_be_made_is_told(run: Any, tmp_path: Path) -> None:
    """A file stands where the directory should be."""
    (tmp_path / "state").write_text("")
    status, words = run().refused()
    assert status == 1
    assert "Name another one with --state-dir" in words


def test_a_lost_key_file_is_told_and_nothing_is_overwritten(run: Any) -> None:
    """A restore that forgot the key: the sealed authority must not be replaced by a new one."""
    process = run()
    process.wait_listening()
    process.stop()
    (process.state_dir / "key").unlink()
    sealed = (process.state_dir / "ca" / "authority").read_bytes()
    status, words = run().refused()
    assert status == 1
    assert "another key" in words
    assert (process.state_dir / "ca" / "authority").read_bytes() == sealed


def test_beyond_loopback_it_speaks_https_only(run: Any) -> None:
    """Tokens never travel in clear."""
    process = run("--api-listen=0.0.0.0:0")
    url = process.wait_listening()["url"]
    assert url.startswith("https://127.0.0.1:")
    port = int(url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
        sock.sendall(b"GET /api/v1/health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"HTTP/1.1 200" not in sock.recv(1000)


def test_systemd_is_told_when_it_is_ready_alive_and_stopping(run: Any, tmp_path: Path) -> None:
    """Type=notify with a watchdog."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        process = run(env={"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"})
        words = manager.recv(4096).decode()
        assert words.startswith("READY=1\nSTATUS=api on http://127.0.0.1:")
        assert manager.recv(4096) == b"WATCHDOG=1"
        assert manager.recv(4096) == b"WATCHDOG=1"
        process.popen.terminate()
        while (word := manager.recv(4096)) == b"WATCHDOG=1":
            pass
        assert word == b"STOPPING=1"
        assert process.popen.wait(20) == 0


def test_the_log_has_one_line_for_each_event_and_no_secret(run: Any) -> None:
    """What a client sends can start no line of its own, and the token is never written."""
    process = run()
    process.wait_listening()
    token = (process.state_dir / "admin-token").read_text().strip()
    port = int(json.loads(process.endpoint_file.read_text())["url"].rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
        sock.sendall(b"GET /\x1b[31m HTTP/1.1\r\n\r\n")
        sock.recv(1000)
    process.get("/api/v1/info")
    process.stop()
    text = process.log.read_text()
    assert token not in text
    assert "\x1b" not in text
    for line in text.splitlines():
        assert line[:4].isdigit(), line
        assert line.split()[1] in {"INFO", "WARNING", "ERROR"}, line


def test_version_and_settings_are_printed(tmp_path: Path) -> None:
    """`kp-coordinator --settings` is the reference of the configuration file."""
    for flag, expected in (
        ("--version", "kp-coordinator 0."),
        ("--settings", "api_listen = '127.0.0.1:46580' host:port"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "kernpool_coordinator", flag],
            env={**os.environ, "PYTHONPATH": PATH},
            capture_output=True,
            text=True,
            check=True,
        )
        assert expected in done.stdout
