"""What a newcomer types in the first ten minutes."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from embedded_install import HOUSE, Install, eventually, processes_of


def test_a_job_prints_and_its_exit_status_is_the_commands(install: Install) -> None:
    """`kernpool launch` in a script: the script must see how the command ended."""
    assert "hello there" in install.kernpool("launch", "--", "echo hello there")
    done = install.run("launch", "--", "exit 7")
    assert done.returncode == 7


def test_a_task_file_runs_with_its_variables(install: Install) -> None:
    """The example of the README."""
    text = install.kernpool("launch", str(HOUSE / "examples" / "hello.yaml"))
    assert "hello" in text


def test_a_wrong_file_names_the_place_and_starts_nothing(install: Install, tmp_path: Path) -> None:
    """A typo in a task file must not make half a job."""
    file = tmp_path / "train.yaml"
    file.write_text("name: x\nrum: echo hi\n")
    done = install.run("launch", str(file))
    assert done.returncode != 0
    assert "train.yaml:2:1: rum: unknown key: did you mean `run`?" in done.stderr
    assert json.loads(install.kernpool("queue", "--json"))["items"] == []


def test_what_is_not_built_yet_is_refused_by_name(install: Install, tmp_path: Path) -> None:
    """A file that asks for spot instances must not run without them in silence."""
    file = tmp_path / "train.yaml"
    file.write_text("run: echo hi\nresources:\n  use_spot: true\n")
    done = install.run("launch", str(file))
    assert done.returncode != 0
    assert "use_spot" in done.stderr
    assert "not built yet" in done.stderr


def test_a_cluster_holds_its_queue_until_it_is_taken_down(install: Install) -> None:
    """Launch, exec, queue, logs, down: the daily loop."""
    install.kernpool("launch", "-c", "dev", "--", "echo one")
    install.kernpool("exec", "dev", "--", "echo two")
    text = install.kernpool("queue", "dev")
    assert text.count("succeeded") == 2
    ids = install.kernpool("queue", "dev", "-q").split()
    assert len(ids) == 2
    assert "two" in install.kernpool("logs", ids[0]) + install.kernpool("logs", ids[1])
    install.kernpool("down", "dev", "--yes")
    assert install.run("exec", "dev", "--", "true").returncode != 0


def test_a_cancelled_job_says_so(install: Install) -> None:
    """A forgotten run is ended by its id."""
    job = install.kernpool("launch", "-d", "-q", "--", "sleep 1000").split()[0]
    install.kernpool("cancel", job, "--yes")
    eventually(lambda: "cancelled" in install.kernpool("queue"), "the job is cancelled")


def test_240_sandboxes_each_run_a_command(install: Install) -> None:
    """The README's headline."""
    if not json.loads(install.kernpool("node", "ls", "--json"))["items"][0]["isolation"]:
        pytest.skip("this machine allows no sandboxes")
    done = install.run("sandbox", "create", "--count", "240", "--rm", "--", "hostname")
    assert done.returncode == 0, done.stderr
    assert "240" in done.stdout + done.stderr


def test_a_second_start_says_that_it_runs(install: Install) -> None:
    """Two terminals, one machine."""
    text = install.kernpool("api", "start")
    assert "running" in text.lower()


def test_stop_asks_while_work_runs(install: Install) -> None:
    """`api stop` ends people's work: without --yes and without a terminal it refuses."""
    install.kernpool("launch", "-d", "--", "sleep 1000")
    done = install.run("api", "stop")
    assert done.returncode != 0
    assert "--yes" in done.stderr
    assert "sleep" in install.kernpool("queue")


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("line", "after_s"), [("A job", 0.0), ("Starting kernpool", 0.0), ("Starting kernpool", 0.3)])
def test_the_demo_can_be_interrupted(line: str, after_s: float) -> None:
    """Ctrl-C in the midst of `make demo` leaves nothing behind, also while the daemons have not said their pids yet."""
    with tempfile.TemporaryDirectory(prefix="kpd-", dir="/tmp") as room:
        process, text = start_demo(Path(room), {}, line)
        time.sleep(after_s)
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=90)
        assert process.returncode == 130, text + output
        assert processes_of(Path(room)) == [], text + output
        assert list(Path(room).iterdir()) == [], text + output


def test_the_demo_leaves_the_install_of_its_user_alone(install: Install) -> None:
    """`make demo` ends all that it finds in its home: with an exported KERNPOOL_HOME that was the user's own work."""
    job = install.kernpool("launch", "-d", "--", "sleep 1000").split()[0]
    with tempfile.TemporaryDirectory(prefix="kpd-", dir="/tmp") as room:
        process, _ = start_demo(Path(room), {"KERNPOOL_HOME": str(install.home)}, "A job")
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=90)
    assert job in install.kernpool("queue", "-s", "-q").split()


def start_demo(room: Path, more: dict[str, str], until: str) -> tuple[subprocess.Popen[str], str]:
    """Run the demo with its files in `room`; gives it, and its output up to the line that has these words."""
    process = subprocess.Popen(
        [sys.executable, str(HOUSE / "examples" / "demo.py")],
        env={**Install(room).env, "TMPDIR": str(room), **more},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if until in line:
            break
    return process, text
