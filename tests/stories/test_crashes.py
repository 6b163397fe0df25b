"""A bad day: SIGKILL of the agent, of the coordinator, and of both, with work running."""

import threading
from pathlib import Path

import pytest
from embedded_install import Install, eventually

import kernpool.errors
from kernpool.sdk import Client


def names_in(file: Path) -> list[str]:
    return sorted(file.read_text().split()) if file.exists() else []


def start_work(client: Client, marks: Path, jobs: int, sandboxes: int) -> tuple[list[str], list[str]]:
    """Start jobs that leave a mark each time they start, and sandboxes; gives their ids."""
    task = {"run": f"echo $KP_JOB_ID >> {marks}; exec sleep 1000"}
    job_ids = sorted(client.launch(task).id for _ in range(jobs))
    eventually(lambda: len(names_in(marks)) >= jobs, "every job started")
    batch = client.sandboxes.create(count=sandboxes, ttl="10m")
    assert [str(item.error) for item in batch if item.error] == []
    return job_ids, sorted(item.id for item in batch)


def running_jobs(client: Client) -> list[str]:
    return sorted(job.id for job in client.jobs(state=["running"]))


def running_sandboxes(client: Client) -> list[str]:
    return sorted(sandbox.id for sandbox in client.sandboxes.ls(state="running"))


def after_the_kill(install: Install, marks: Path, jobs: list[str], sandboxes: list[str]) -> None:
    """All are still running and listed, each started once, and the sandboxes still do work."""
    install.start()
    with install.client() as client:
        eventually(lambda: running_jobs(client) == jobs, "every job is listed as running")
        eventually(lambda: running_sandboxes(client) == sandboxes, "every sandbox is listed as running")
        assert names_in(marks) == jobs, "each job was started once"
        done = client.sandboxes.get(sandboxes[0]).exec(["sh", "-c", "echo alive"])
        assert (done.exit_code, done.stdout) == (0, b"alive\n")


def kill_and_check(install: Install, marks: Path, jobs: int, sandboxes: int, rounds: list[list[str]]) -> None:
    with install.client() as client:
        if not all(node.isolation for node in client.nodes()):
            pytest.skip("this machine allows no sandboxes")
        job_ids, sandbox_ids = start_work(client, marks, jobs, sandboxes)
    for daemons in rounds:
        install.kill(*daemons)
        after_the_kill(install, marks, job_ids, sandbox_ids)


@pytest.mark.timeout(240)
def test_killed_daemons_lose_no_work(install: Install, tmp_path: Path) -> None:
    """The kernel's OOM killer takes the agent, then the coordinator, then both: people's work must not notice."""
    kill_and_check(install, tmp_path / "marks", 5, 20, [["agent"], ["coordinator"], ["agent", "coordinator"]])


@pytest.mark.full
@pytest.mark.timeout(600)
def test_killed_daemons_lose_nothing_of_50_jobs_and_200_sandboxes(install: Install, tmp_path: Path) -> None:
    """The same at the size of a busy node, three times over."""
    rounds = [["agent"], ["coordinator"], ["agent", "coordinator"]] * 3
    kill_and_check(install, tmp_path / "marks", 50, 200, rounds)


@pytest.mark.timeout(180)
def test_a_kill_amid_240_creates_leaves_nothing_behind(install: Install) -> None:
    """The agent dies while it makes sandboxes: what was half made is swept, what was made is listed or ended."""
    with install.client() as client:
        if not all(node.isolation for node in client.nodes()):
            pytest.skip("this machine allows no sandboxes")
        seen: list[str] = []
        first = threading.Event()

        def create() -> None:
            try:
                for item in client.sandboxes.stream(count=240, command=["true"]):
                    seen.append(item.id)
                    first.set()
            except kernpool.errors.KernpoolError:  # the cut is the story; what is left is checked below
                first.set()

        thread = threading.Thread(target=create)
        thread.start()
        first.wait(30)
        install.kill("agent")
        install.start()
        thread.join(60)
        assert not thread.is_alive(), "a create whose node died must end"
        with install.client() as fresh:
            fresh.sandboxes.remove(all=True)
            eventually(lambda: running_sandboxes(fresh) == [], "no sandbox is left")
