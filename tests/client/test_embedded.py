"""The embedded install for real: coordinator and agent of this machine, started, found, crashed, stopped."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from transcripts import HOUSE, play, steps_of
from typed import Shell

from kernpool.embedded.layout import Home, Settings
from kernpool.embedded.processes import Process, daemon, port_owner, work_processes
from kernpool.sdk import Client

pytestmark = pytest.mark.timeout(180)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory for an install (short: sockets lie below it), stopped at the end; nothing of it may be left."""
    path = Path(tempfile.mkdtemp(prefix="kp-", dir="/tmp"))
    Settings(free_port(), f"127.0.0.1:{free_port()}").save(path / "settings.json")
    try:
        yield path
    finally:
        done = Shell(path, KERNPOOL_HOME=str(path)).run("api", "stop", "--yes")
        left = [process.pid for process in work_processes(path / "agent" / "work")]
        mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(path) in line]
        shutil.rmtree(path, ignore_errors=True)
        assert (done.returncode, left, mounts) == (0, [], []), done.stderr


@pytest.fixture
def shell(home: Path, tmp_path: Path) -> Shell:
    return Shell(tmp_path, KERNPOOL_HOME=str(home))


def offers_sandboxes(shell: Shell) -> bool:
    return bool(json.loads(shell.run("node", "ls", "--json").stdout)["items"][0]["isolation"])


def test_the_quickstart_is_true(home: Path, tmp_path: Path) -> None:
    """A newcomer types it from top to bottom."""
    shell = Shell(tmp_path, KERNPOOL_HOME=str(home))
    shell.run("api", "start")
    if not offers_sandboxes(shell):
        pytest.skip("this machine allows no sandboxes")
    shell.run("api", "stop", "--yes")
    steps, files = steps_of(HOUSE / "docs" / "quickstart.md")
    complaints = play(steps, files, tmp_path, shell.env)
    assert len(steps) > 12
    assert not complaints, "\n\n".join(complaints)


def test_the_first_command_that_makes_something_starts_it_and_a_second_start_says_so(shell: Shell, home: Path) -> None:
    assert shell.run("queue").returncode == 1
    first = shell.run("launch", "-q", "--", "echo hi")
    assert first.stdout == "hi\n"
    assert first.stderr == "Starting kernpool on this machine (it stays until `kernpool api stop`) ...\n"
    again = shell.run("api", "start")
    assert (again.returncode, "already running" in again.stdout) == (0, True)
    assert shell.run("api", "status").returncode == 0
    assert home.stat().st_mode & 0o777 == 0o700
    assert (home / "token").stat().st_mode & 0o777 == 0o600
    assert not (home / "join-token").exists(), "the token has done its work"


def test_two_starts_at_once_make_one(shell: Shell, home: Path) -> None:
    """Two terminals, or a script that launches ten jobs in the background."""
    starts = [shell.popen("launch", "-d", "--", "true") for _ in range(4)]
    ids = set()
    for process in starts:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        ids.add(out.strip())
    assert ids == {"j-1", "j-2", "j-3", "j-4"}
    coordinator = daemon(home / "coordinator", "coordinator.pid")
    assert coordinator is not None
    coordinator.close()


def test_a_port_in_use_is_told_with_who_uses_it(shell: Shell, home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = shell.run("api", "start", "--port", str(port))
        assert done.returncode == 1
        assert f"Port {port} is used by process {os.getpid()} " in done.stderr
        assert "--port 0" in done.stderr
        assert port_owner(port).startswith(f"process {os.getpid()} (")
    assert daemon(home / "coordinator", "coordinator.pid") is None


def test_a_start_that_fails_shows_the_end_of_the_log(shell: Shell, home: Path) -> None:
    """The state directory was made by somebody else, or is damaged."""
    (home / "coordinator").mkdir()
    (home / "coordinator" / "kernpool.db").write_text("this is no database " * 100)
    done = shell.run("launch", "--", "true")
    assert done.returncode == 125
    assert "The coordinator could not be started." in done.stderr
    assert f"Its whole log: {home}/coordinator/coordinator.log" in done.stderr
    (home / "coordinator" / "kernpool.db").unlink()


def test_what_crashed_is_started_again_and_the_work_goes_on(shell: Shell, home: Path) -> None:
    """The OOM killer takes the coordinator, later the agent."""
    job = shell.run("launch", "-d", "--", "echo begun; sleep 1000").stdout.strip()
    for name in ("coordinator", "agent"):
        process = daemon(home / name, f"{name}.pid")
        assert process is not None
        with process:
            process.signal(signal.SIGKILL)
            assert process.wait(10)
        down = shell.run("api", "status")
        assert (down.returncode, f"{name:<11}  does not run" in down.stdout) == (1, True)
        assert shell.run("launch", "-q", "--", "echo hi").stdout == "hi\n"
    assert json.loads(shell.run("queue", "-s", "--json").stdout)["items"][0]["id"] == job


def test_stop_asks_ends_the_work_or_keeps_it(shell: Shell, home: Path) -> None:
    job = shell.run("launch", "-d", "--", "exec sleep 1000").stdout.strip()
    refused = shell.run("api", "stop")
    assert (refused.returncode, "1 job would be ended" in refused.stderr) == (1, True)
    denied = shell.tty("api", "stop")
    denied.until("[y/N]")
    denied.type("n\n")
    assert denied.end() == 1
    kept = shell.run("api", "stop", "--keep-work")
    assert (kept.returncode, "1 job left running" in kept.stdout) == (0, True)
    assert work_processes(home / "agent" / "work") != []
    shell.run("api", "start")
    assert shell.run("queue", "-q", "-s").stdout == f"{job}\n"
    assert shell.run("api", "stop", "--yes").stdout == "Stopped.\n"
    assert work_processes(home / "agent" / "work") == []
    shell.run("api", "start")
    assert json.loads(shell.run("queue", "--json").stdout)["items"][0]["state"] == "cancelled"


def test_stop_needs_neither_coordinator_nor_agent(shell: Shell, home: Path) -> None:
    """Both crashed, and somebody wants the machine clean."""
    shell.run("launch", "-d", "--", "sleep 1000 & exec sleep 1000")
    for name in ("coordinator", "agent"):
        process = daemon(home / name, f"{name}.pid")
        assert process is not None
        with process:
            process.signal(signal.SIGKILL)
            assert process.wait(10)
    assert "1 job" in shell.run("api", "stop").stderr
    assert shell.run("api", "stop", "--yes").returncode == 0
    assert work_processes(home / "agent" / "work") == []


def test_the_examples_run(shell: Shell) -> None:
    examples = HOUSE / "examples"
    assert "hello, you" in shell.run("launch", "-e", "WHO=you", str(examples / "hello.yaml")).stdout
    sweep = shell.run("launch", "-c", "sweep", "-e", "LR=0.1", str(examples / "sweep.yaml"))
    assert "lr 0.1 step 200 loss" in sweep.stdout
    secret = shell.run("launch", "--secret", "API_KEY", str(examples / "setup-and-run.yaml"), env={"API_KEY": "hush"})
    assert "a key of 4 characters" in secret.stdout
    if not offers_sandboxes(shell):
        pytest.skip("this machine allows no sandboxes")
    done = subprocess.run(
        [sys.executable, str(examples / "rollouts.py")], env=shell.env, capture_output=True, text=True, check=True
    )
    assert "adds     15 of 15 right; ended by: exited 0" in done.stdout
    assert "loops    0 of 15 right; ended by: timeout" in done.stdout


def test_a_pid_that_was_reused_is_not_taken_for_the_daemon(tmp_path: Path) -> None:
    """After a reboot the pid file names whoever has that pid now."""
    (tmp_path / "agent.pid").write_text(f"{os.getpid()}\n")
    assert daemon(tmp_path, "agent.pid") is None
    (tmp_path / "agent.pid").write_text("4194304000\n")
    assert daemon(tmp_path, "agent.pid") is None
    (tmp_path / "agent.pid").write_text("nonsense")
    assert daemon(tmp_path, "agent.pid") is None


def test_a_process_that_ignores_sigterm_is_killed() -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.read(1)
    process = Process.hold(child.pid)
    assert process is not None
    with process:
        assert process.end(0.05) is False
        assert process.has_ended
    assert child.wait() == -signal.SIGKILL
    child.stdout.close()
    assert Process.hold(child.pid) is None


def test_a_home_whose_sockets_would_be_too_long_is_refused(tmp_path: Path) -> None:
    shell = Shell(tmp_path, KERNPOOL_HOME=str(tmp_path / ("x" * 90)))
    done = shell.run("launch", "--", "true")
    assert (done.returncode, "too long" in done.stderr, "KERNPOOL_HOME" in done.stderr) == (125, True, True)


def test_settings_outlive_a_stop_and_a_damaged_file_is_like_none(tmp_path: Path) -> None:
    home = Home(tmp_path)
    Settings(1234, "0.0.0.0:5").save(home.settings_file)
    assert Settings.load(home.settings_file).told(None, "127.0.0.1:6") == Settings(1234, "127.0.0.1:6")
    home.settings_file.write_text('{"api_port": []}')
    assert Settings.load(home.settings_file) == Settings()


@pytest.mark.parametrize("direct", [False, True], ids=["through-the-coordinator", "straight-to-the-node"])
def test_commands_files_ports_and_logs_work_both_ways(shell: Shell, home: Path, direct: bool) -> None:
    """One implementation on the node, two ways in."""
    shell.run("api", "start")
    url = json.loads((home / "endpoint.json").read_text())["url"]
    with Client(url, (home / "token").read_text().strip(), direct=direct) as client:
        job = client.launch({"run": "seq 50000; exit 4"})
        assert b"".join(job.logs()) == b"".join(b"%d\n" % number for number in range(1, 50001))
        assert job.wait(30).exit_code == 4
        assert b"".join(job.logs(follow=False, tail=2)) == b"49999\n50000\n"
        if not offers_sandboxes(shell):
            pytest.skip("this machine allows no sandboxes")
        with client.sandboxes.create_one(env={"A": "1"}) as sandbox:
            done = sandbox.exec(["sh", "-c", "cat; echo $A; echo e >&2; exit 3"], stdin=b"in\n")
            assert (done.reason, done.exit_code, done.stdout, done.stderr) == ("exited", 3, b"in\n1\n", b"e\n")
            data = os.urandom(3_000_000)
            sandbox.files.write("/root/data", data, mode=0o600)
            assert sandbox.files.read("/root/data") == data
            assert [(entry.name, entry.size, entry.mode) for entry in sandbox.files.list("/root")] == [
                ("data", 3_000_000, 0o600)
            ]
            with sandbox.start(["cat"]) as process:
                process.write(data)
                process.close_stdin()
                assert b"".join(chunk.data for chunk in process) == data
                assert process.wait(10).exit_code == 0
            serve = (
                "import socket; s = socket.create_server(('127.0.0.1', 80)); print('up', flush=True); c, _ = s.accept()"
            )
            serve += "; d = b''.join(iter(lambda: c.recv(65536), b'')); c.sendall(d.upper()); c.close()"
            with sandbox.start(["python3", "-c", serve]) as server:
                assert next(iter(server)).data == b"up\n"
                with sandbox.connect(80) as connection:
                    connection.send(b"hello" * 100_000)
                    connection.close_write()
                    assert b"".join(iter(lambda: connection.receive(20), b"")) == b"HELLO" * 100_000
        used = any(grant.startswith(("job/", "sandbox/")) for grant in client.routes._grants)
        assert used is direct
