"""cgroups: v1 for real where root may make them, v2 on a recorded tree and for real where the machine has it."""

import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernpool_mesh.messages import Limits
from kernpool_sandbox.cgroup_detect import detect, open_tree
from kernpool_sandbox.cgroup_pool import CgroupPool
from kernpool_sandbox.cgroups import CgroupTree, CgroupV2, NoCgroups, Usage

AsUser = Callable[..., str]
LIMITS = Limits(cpu_millis=500, memory_mib=64, disk_mib=0, pids=20)


# --- v2, recorded ---

V2_MOUNT = "30 20 0:26 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"


def recorded_v2(root: Path, *, own: str = "/", controllers: str = "cpuset cpu io memory pids") -> Path:
    """Lay out the files that a kernel shows for a cgroup v2 machine."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text(V2_MOUNT.format(root="/"))
    (root / "proc/self/cgroup").write_text(f"0::{own}\n")
    top = root / "sys/fs/cgroup"
    make_v2_group(top, controllers)
    if own != "/":
        make_v2_group(top / own.strip("/"), controllers)
    return top


def make_v2_group(path: Path, controllers: str = "") -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "cgroup.controllers").write_text(controllers + "\n")
    (path / "cgroup.subtree_control").write_text(controllers + "\n")
    (path / "cgroup.procs").write_text("")


class RecordedV2:
    """A v2 tree on plain files: what the kernel would make with a directory is made by hand."""

    FILES = ("memory.max", "memory.swap.max", "cpu.max", "pids.max", "cgroup.kill")

    def __init__(self, root: Path) -> None:
        facts = detect(root=root)
        assert facts.kind == "v2"
        base = facts.parents[""] / "kernpool-test"
        make_v2_group(base)
        tree = open_tree(facts, "test")
        assert isinstance(tree, CgroupV2)
        self.tree = tree
        self.base = base

    def create(self, name: str) -> Path:
        self.tree.create(name)
        path = self.base / name
        for file in self.FILES:
            (path / file).write_text("")
        (path / "cgroup.procs").write_text("")
        return path


def test_v2_limits_are_written_as_the_kernel_reads_them(tmp_path: Path) -> None:
    """A node with systemd and cgroup v2."""
    recorded_v2(tmp_path)
    recorded = RecordedV2(tmp_path)
    path = recorded.create("c0")
    recorded.tree.limit("c0", LIMITS)
    assert (path / "memory.max").read_text() == str(64 << 20)
    assert (path / "memory.swap.max").read_text() == "0"
    assert (path / "cpu.max").read_text() == "50000 100000"
    assert (path / "pids.max").read_text() == "20"
    for file in RecordedV2.FILES:
        (path / file).write_text("")
    recorded.tree.limit("c0", Limits())
    assert [(path / file).read_text() for file in RecordedV2.FILES[:4]] == ["max", "max", "max 100000", "max"]
    assert (recorded.base / "cgroup.subtree_control").read_text() == "+memory +cpu +pids"


def test_v2_counters_are_read(tmp_path: Path) -> None:
    """OOM kills decide whether a sandbox is told to have ended by `oom`."""
    recorded_v2(tmp_path)
    recorded = RecordedV2(tmp_path)
    path = recorded.create("c0")
    assert recorded.tree.oom_kills("c0") == 0
    assert recorded.tree.usage("c0") == Usage()
    (path / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 2\noom_kill 3\noom_group_kill 0\n")
    (path / "memory.current").write_text("4096\n")
    (path / "memory.peak").write_text("8192\n")
    (path / "pids.current").write_text("3\n")
    (path / "cpu.stat").write_text("usage_usec 1234567\nuser_usec 1\n")
    (path / "cgroup.procs").write_text("12\n13\n")
    assert recorded.tree.oom_kills("c0") == 3
    assert recorded.tree.usage("c0") == Usage(4096, 8192, 3, 1234)
    assert recorded.tree.pids("c0") == [12, 13]
    assert recorded.tree.paths("c0") == (str(path),)
    assert recorded.tree.existing() == {"c0"}


def test_v2_kill_uses_the_kernels_own(tmp_path: Path) -> None:
    """Forks in flight die, too."""
    recorded_v2(tmp_path)
    recorded = RecordedV2(tmp_path)
    path = recorded.create("c0")
    assert recorded.tree.kill("c0")
    assert (path / "cgroup.kill").read_text() == "1"


def test_v2_without_the_controllers_is_none_with_a_reason(tmp_path: Path) -> None:
    """A hybrid machine whose unified tree has hugetlb only."""
    recorded_v2(tmp_path, controllers="hugetlb")
    facts = detect(root=tmp_path)
    assert facts.kind == "none"
    assert facts.problems == ("cgroup2 lacks the controllers cpu, memory, pids",)


def test_v2_of_an_ordinary_user_is_the_delegated_part(tmp_path: Path, as_user: AsUser) -> None:
    """A user unit with Delegate=yes: the top is root's, the own part is the user's."""
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)
    top = recorded_v2(tmp_path, own="/user.slice/app.scope")
    own = top / "user.slice/app.scope"
    for path in (own, *own.iterdir()):
        os.chown(path, 1001, 1001)
    script = "from pathlib import Path; import sys\nfrom kernpool_sandbox.cgroup_detect import detect\n"
    script += "facts = detect(root=Path(sys.argv[1])); print(facts.kind, *facts.parents.values(), *facts.problems)"
    assert as_user(script, str(tmp_path)) == f"v2 {own}\n"
    os.chown(own, 0, 0)
    assert "is not delegated to this user" in as_user(script, str(tmp_path))


def test_a_machine_without_any_cgroups_says_so(tmp_path: Path) -> None:
    """Some containers."""
    (tmp_path / "proc/self").mkdir(parents=True)
    facts = detect(root=tmp_path)
    assert facts.kind == "none"
    assert "mount cgroup2" in facts.problems[0]
    pool = CgroupPool(open_tree(facts, "test"))
    lease = pool.take(LIMITS)
    assert (lease.name, lease.paths) == ("", ())
    assert pool.give_back(lease.name)
    assert pool.kill(lease.name)


def test_v1_without_root_is_none_with_a_reason(tmp_path: Path) -> None:
    """An ordinary user on a v1 machine gets rlimits, and is told."""
    (tmp_path / "proc/self").mkdir(parents=True)
    lines = [
        f"3{number} 20 0:3{number} / /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}"
        for number, name in enumerate(("memory", "cpu", "pids"))
    ]
    (tmp_path / "proc/self/mountinfo").write_text("\n".join(lines))
    facts = detect(root=tmp_path)
    assert facts.kind == "none"
    assert "cgroups need root here" in facts.problems[0]


# --- the real ones of this machine ---


@pytest.fixture
def tree() -> Iterator[CgroupTree]:
    facts = detect()
    if facts.kind == "none":
        pytest.skip(f"no cgroups here: {'; '.join(facts.problems)}")
    tree = open_tree(facts, f"test{secrets.token_hex(4)}")
    yield tree
    assert tree.existing() == set(), "the test left cgroups behind"
    tree.remove_base()
    assert not any(base.exists() for base in tree.bases)


def join(paths: tuple[str, ...], argv: list[str], **options: Any) -> "subprocess.Popen[bytes]":
    """Start a process that joins by itself, as kp-init's children do."""
    script = (
        "for d in $DIRS; do if [ -e $d/tasks ]; then echo 0 >$d/tasks; else echo 0 >$d/cgroup.procs; fi; done; exec "
    )
    return subprocess.Popen(
        ["/bin/sh", "-c", script + '"$@"', "sh", *argv],
        env=os.environ | {"DIRS": " ".join(paths)},
        **options,
    )


def test_a_process_over_its_memory_limit_is_killed_and_counted(tree: CgroupTree) -> None:
    """A sandbox that allocates 1 GB with a limit of 32 MiB."""
    tree.create("c0")
    tree.limit("c0", Limits(memory_mib=32))
    bomb = join(tree.paths("c0"), ["tail", "/dev/zero"])
    assert bomb.wait(30) == -signal.SIGKILL
    assert tree.oom_kills("c0") == 1
    assert tree.usage("c0").memory_peak_bytes > 16 << 20
    assert tree.remove("c0")


def test_a_fork_bomb_meets_its_limit(tree: CgroupTree) -> None:
    """A test suite that starts a thousand processes with a limit of 10."""
    tree.create("c0")
    tree.limit("c0", Limits(pids=10))
    script = "i=0; while [ $i -lt 40 ]; do sleep 60 & i=$((i+1)); done; wait"
    bomb = join(tree.paths("c0"), ["sh", "-c", script], stderr=subprocess.PIPE)
    assert bomb.stderr is not None
    assert b"ork" in bomb.stderr.readline()
    assert len(tree.pids("c0")) <= 10
    while not tree.kill("c0"):
        pass
    bomb.wait(10)
    bomb.stderr.close()
    while not tree.remove("c0"):
        pass


def test_limits_can_be_raised_lowered_and_lifted(tree: CgroupTree) -> None:
    """A spare cgroup of other limits is used again."""
    tree.create("c0")
    for limits in (Limits(100, 16, 0, 5), Limits(2000, 512, 0, 50), Limits(), Limits(1, 8, 0, 4)):
        tree.limit("c0", limits)
    assert tree.remove("c0")
    assert tree.remove("c0")


def test_a_cgroup_is_used_again_only_when_it_is_empty(tree: CgroupTree) -> None:
    """The next sandbox must not meet processes of the last one."""
    pool = CgroupPool(tree)
    lease = pool.take(LIMITS)
    sleeper = join(lease.paths, ["sleep", "60"])
    while not tree.pids(lease.name):
        assert sleeper.poll() is None
    assert not pool.give_back(lease.name)
    while not pool.kill(lease.name):
        pass
    sleeper.wait(10)
    while not pool.give_back(lease.name):
        pass
    assert pool.spares == 0, "its limits were changed by the kill"
    lease = pool.take(LIMITS)
    assert pool.give_back(lease.name)
    assert pool.take(LIMITS).name == lease.name
    assert pool.give_back(lease.name)
    other = pool.take(Limits(memory_mib=16))
    assert other.name == lease.name, "another limit in a spare one is cheaper than a new one"
    assert pool.give_back(other.name)
    pool.remove_spares()


def test_what_an_earlier_agent_left_is_found_and_removed_but_jobs_are_not(tree: CgroupTree) -> None:
    """kill -9 of the agent: its spare cgroups, and some with processes in them, stay behind. Jobs go on."""
    earlier = CgroupPool(tree)
    earlier.prepare(LIMITS, 3)
    lease = earlier.take(LIMITS)
    sleeper = join(lease.paths, ["sleep", "60"])
    while not tree.pids(lease.name):
        assert sleeper.poll() is None
    tree.create("j-1.0.1")
    pool = CgroupPool(tree)
    pool.adopt("c0")
    assert pool.strangers(()) == ["c1", "c2"] if lease.name == "c0" else pool.strangers(())
    assert "j-1.0.1" not in pool.strangers(())
    for name in [*pool.strangers(()), "c0"]:
        while not pool.remove_stranger(name):
            pass
    sleeper.wait(10)
    fresh = pool.take(LIMITS)
    assert int(fresh.name[1:]) > 2
    assert pool.give_back(fresh.name)
    pool.remove_spares()
    assert tree.remove("j-1.0.1")


def test_no_cgroups_answer_everything_with_nothing() -> None:
    """rlimit mode runs the same code."""
    tree = NoCgroups()
    tree.create("c0")
    tree.limit("c0", LIMITS)
    assert tree.reset("c0")
    tree.remove_base()
    assert (tree.paths("c0"), tree.oom_kills("c0"), tree.pids("c0"), tree.existing()) == ((), 0, [], set())
    assert tree.kill("c0")
    assert tree.remove("c0")
