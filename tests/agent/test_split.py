"""The system install: the spawner as root, the agent as a user without any right, jobs as another user."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kernpool_agent import workunit
from kernpool_mesh import messages as m
from kernpool_mesh.reasons import EndReason

AGENT_UID = 64_999
pytestmark = pytest.mark.timeout(120)


def python_for_others() -> tuple[str, dict[str, str]]:
    """Return a Python that a user without rights can run with our modules."""
    site = os.pathsep.join(path for path in sys.path if path)
    for interpreter in (sys.executable, "/usr/bin/python3"):
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": site}
        try:
            done = subprocess.run(
                [interpreter, "-c", "import kernpool_agent.supervisor"],
                user=AGENT_UID, group=AGENT_UID, extra_groups=[], env=env, cwd="/", check=False, capture_output=True,
            )  # fmt: skip
        except PermissionError:
            continue
        if done.returncode == 0:
            return interpreter, env
    pytest.skip("no Python here that a user without rights can run together with our modules")


class Node:
    def __init__(self, directory: Path, coordinator: Any) -> None:
        self.directory = directory
        self.python, self.env = python_for_others()
        self.flags = [f"--state-dir={directory}/a", f"--node-file={directory}/node.toml", "--jobs-as=job_user"]
        (directory / "node.toml").write_text('job_user = "daemon"\n')
        (directory / "token").write_text(coordinator.join_token())
        (directory / "token").chmod(0o644)
        self.coordinator = coordinator
        self.work = subprocess.Popen(self.command("work", f"--agent-user={AGENT_UID}"), env=self.env, cwd="/")
        self.agent: subprocess.Popen[bytes] | None = None

    def command(self, name: str, *more: str) -> list[str]:
        return [self.python, "-m", "kernpool_agent", name, *self.flags, *more]

    def as_agent(self, name: str, *more: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            self.command(name, *more), user=AGENT_UID, group=AGENT_UID, extra_groups=[], env=self.env, cwd="/"
        )


@pytest.fixture
async def node(coordinator: Any, eventually: Any) -> AsyncIterator[Node]:
    if os.geteuid() != 0:
        pytest.skip("two users on one node need root")
    directory = Path(tempfile.mkdtemp(prefix="kp-split-", dir="/tmp"))
    directory.chmod(0o755)
    node = Node(directory, coordinator)
    try:
        await eventually(lambda: (directory / "a/work/spawner.sock").exists() or node.work.poll() is not None)
        assert node.work.poll() is None
        flags = (f"--coordinator={coordinator.url}", f"--join-token-file={directory}/token")
        node.agent = node.as_agent("run", *flags)
        await coordinator.linked()
        yield node
    finally:
        stop = node.as_agent("stop", "--all-work")
        await eventually(lambda: stop.poll() is not None)
        if node.agent is not None:
            await eventually(lambda: node.agent and node.agent.poll() is not None)
        await eventually(lambda: node.work.poll() is not None)
        parent = f"work-{AGENT_UID}"
        for top in Path("/sys/fs/cgroup").glob(f"*/{parent}"):
            top.rmdir()
        shutil.rmtree(directory)


async def test_an_agent_without_rights_runs_jobs_as_another_user_and_sandboxes_with_their_own_ids(
    node: Node, coordinator: Any
) -> None:
    """The whole path of a node that `systemctl enable kp-work kp-agent` made."""
    assert node.agent is not None
    status = Path(f"/proc/{node.agent.pid}/status").read_text()
    assert "CapEff:\t0000000000000000" in status
    assert f"Uid:\t{AGENT_UID}" in status
    start = m.StartAttempt(coordinator.next_id(), "j-1", 0, 1, "t", "", "id -un; exit 4", {}, m.Limits(100, 100))
    assert (await coordinator.ask(start)).code == ""
    ended = await coordinator.until(
        lambda: (a := coordinator.attempts.get(("j-1", 0, 1))) and a.state == "ended" and a, "the job's end"
    )
    assert (ended.reason, ended.exit_code) == (EndReason.EXITED, 4)
    (log,) = (node.directory / "a/work/j").glob("*/log.*")
    assert log.read_text() == "daemon\n"
    inventory = coordinator.all(m.Inventory)[0]
    if not inventory.isolation:
        pytest.skip(f"no sandboxes here: {inventory.isolation_problems}")
    assert inventory.facts["uids"] == "range"
    command = m.Command(["/bin/sh", "-c", "id -u; cat /proc/self/uid_map"])
    request = m.CreateSandboxes(coordinator.next_id(), ["sb-split0000000001"], m.Template(), 60, command=command)
    (await coordinator.linked()).send_nowait(request)
    answer = await coordinator.until(
        lambda: next((i for b in coordinator.all(m.SandboxItems) for i in b.items if i.result or i.error), None)
    )
    assert answer.error == ""
    inside, (first, outside, count) = answer.result.stdout.split()[0], answer.result.stdout.split()[1:4]
    assert (inside, first, count) == (b"0", b"0", b"65536")
    assert int(outside) >= 0x4000_0000, "root inside is nobody outside"


async def test_a_stolen_agent_cannot_have_the_spawner_show_it_the_disk(node: Node, coordinator: Any) -> None:
    """It may ask for what it likes: images lie where the owner said, and that is nowhere by default."""
    secret = node.directory / "image"
    secret.mkdir(mode=0o755)
    request = m.CreateSandboxes(coordinator.next_id(), ["sb-split0000000002"], m.Template(image=str(secret)), 60)
    (await coordinator.linked()).send_nowait(request)
    answer = await coordinator.until(lambda: next((i for b in coordinator.all(m.SandboxItems) for i in b.items), None))
    assert answer.error != ""


# --- what root prepares, and the traps that an agent could lay ---


def test_roots_hands_follow_no_link_of_the_agents(tmp_path: Path) -> None:
    """The agent's user owns the state directory and puts a link to /etc where root is about to hand something over."""
    (tmp_path / "a").mkdir(mode=0o700)
    (tmp_path / "target").mkdir()
    (tmp_path / "a" / "work").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match=r"Not a directory|symbolic"):
        workunit.make_directories(tmp_path / "a", tmp_path / "a" / "work", os.geteuid())
    (tmp_path / "a" / "work").unlink()
    work_fd = workunit.make_directories(tmp_path / "a", tmp_path / "a" / "work", os.geteuid())
    (tmp_path / "a" / "work" / workunit.PROBE_FILE).symlink_to(tmp_path / "precious")
    (tmp_path / "precious").write_text("precious")
    workunit.leave_answers(work_fd, {"userns": ""})
    os.close(work_fd)
    assert (tmp_path / "precious").read_text() == "precious"
    assert workunit.probed(tmp_path / "a" / "work") == {"userns": ""}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give directories away")
def test_a_directory_of_a_third_user_is_not_handed_over(tmp_path: Path) -> None:
    """Somebody else's directory stands where ours should be."""
    (tmp_path / "a").mkdir()
    os.chown(tmp_path / "a", 12345, -1)
    with pytest.raises(PermissionError, match="belongs to neither"):
        workunit.make_directories(tmp_path / "a", tmp_path / "a" / "work", AGENT_UID)


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("0::/system.slice/kp-work.service\n", "system.slice/kp-work.service"),
        ("0::/system.slice/kp-work.service/spawner\n", "system.slice/kp-work.service"),
        (
            "5:memory:/\n1:name=systemd:/user.slice/user-1.slice/user@1.service/app.slice/kp-work.service\n",
            "user.slice/user-1.slice/user@1.service/app.slice/kp-work.service",
        ),
        ("0::/user.slice/user-0.slice/session-1.scope\n", ""),
        ("0::/\n", ""),
    ],
)
def test_the_unit_is_found_by_its_cgroup(text: str, unit: str) -> None:
    """v2, hybrid, a user's own manager, and no unit at all."""
    assert workunit.own_unit(text) == unit


def test_a_v2_units_cgroup_is_divided_and_handed_over(tmp_path: Path) -> None:
    """On a recorded tree: the spawner's leaf, the controllers, the agent's part."""
    unit = tmp_path / "cgroup" / "system.slice" / "kp-work.service"
    unit.mkdir(parents=True)
    for name in ("cgroup.procs", "cgroup.subtree_control"):
        (unit / name).touch()
    (unit / "spawner").mkdir()
    (unit / "spawner" / "cgroup.procs").touch()
    work_fd = workunit.make_directories(tmp_path / "a", tmp_path / "a" / "work", os.geteuid())
    parent = workunit.prepare(work_fd, os.geteuid(), unit="system.slice/kp-work.service", root=tmp_path / "cgroup")
    os.close(work_fd)
    assert parent == f"system.slice/kp-work.service/work-{os.geteuid()}"
    assert (tmp_path / "cgroup" / parent).is_dir()
    assert (unit / "spawner" / "cgroup.procs").read_text() == "0"
    assert (unit / "cgroup.subtree_control").read_text() == "+memory +cpu +pids"
    assert workunit.parent_of_work(tmp_path / "a" / "work") == parent
