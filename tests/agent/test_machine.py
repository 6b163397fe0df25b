"""What the machine is, read from recorded trees: containers with limits, v1, v2, hybrid, and none."""

import os
from pathlib import Path

import pytest

from kernpool_agent import machine
from kernpool_agent.config import Config
from kernpool_agent.inventory import total, urls
from kernpool_mesh.messages import Gpu

CPUS = 1000 * len(os.sched_getaffinity(0))
MEMINFO = "MemTotal:       16000000 kB\nMemFree: 5 kB\nMemAvailable:   8000000 kB\n"


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"


def test_a_v2_limit_anywhere_above_us_holds(tmp_path: Path) -> None:
    """A pod with 1.5 CPUs and 2 GiB: the node's 64 CPUs and 512 GiB are not ours to promise."""
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/kube/pod-1/agent\n",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/kube/pod-1/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/kube/pod-1/memory.max": f"{2 << 30}\n",
            "sys/fs/cgroup/kube/pod-1/agent/cgroup.controllers": "cpu memory pids\n",
            "sys/fs/cgroup/kube/pod-1/agent/cpu.max": "max 100000\n",
            "sys/fs/cgroup/kube/pod-1/agent/memory.max": "max\n",
        },
    )
    seen = machine.look(tmp_path, root)
    assert seen.cpu_millis == min(CPUS, 1500)
    assert seen.memory_mib == 2048
    assert seen.cgroup == "v2"


def test_a_v1_limit_in_a_container_is_found_below_the_mounts_own_root(tmp_path: Path) -> None:
    """Docker on an old host: the mount shows only our part of the hierarchy."""
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n",
            "proc/self/mountinfo": (
                "31 23 0:27 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
                "32 23 0:28 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct\n"
            ),
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{1 << 30}\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    seen = machine.look(tmp_path, root)
    assert (seen.cpu_millis, seen.memory_mib, seen.cgroup) == (500, 1024, "v1")


def test_no_limit_is_no_limit(tmp_path: Path) -> None:
    """v1 writes a huge number and -1 where nothing is limited."""
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/\n4:cpu:/\n0::/\n",
            "proc/self/mountinfo": (
                "31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
                "32 23 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
                "33 23 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
            ),
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/unified/cgroup.controllers": "hugetlb\n",
        },
    )
    seen = machine.look(tmp_path, root)
    assert (seen.cpu_millis, seen.memory_mib, seen.cgroup) == (CPUS, 15625, "v1")


def test_a_machine_that_tells_nothing_is_still_described(tmp_path: Path) -> None:
    """A sandbox around the agent hides /proc and /sys."""
    seen = machine.look(tmp_path, tmp_path / "empty")
    assert seen.cgroup == "none"
    assert seen.cpu_millis == CPUS
    assert seen.disks == ()
    assert seen.disk_mib > 0


def test_this_very_machine_is_described() -> None:
    """Whatever it is, it has a kernel, memory and a disk."""
    seen = machine.look(Path("/"))
    assert seen.facts["kernel"] == os.uname().release
    assert seen.memory_mib > 0
    assert 0 <= machine.disk_free_mib(Path("/nonexistent/deep/down")) <= seen.disk_mib
    assert machine.memory_available_mib() > 0
    assert machine.addresses()


def test_facts_are_read_where_they_are(tmp_path: Path) -> None:
    """The names people know their machines by."""
    root = tree(
        tmp_path,
        {
            "etc/os-release": 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
            "proc/cpuinfo": "processor\t: 0\nmodel name\t: AMD EPYC 9654\n",
            "proc/sys/kernel/random/boot_id": "abc\n",
            "proc/self/mounts": f"/dev/sda1 {'/mnt/a'}\\040b ext4 rw 0 0\nnas:/x /nas nfs4 rw 0 0\n",
        },
    )
    (root / "mnt/a b").mkdir(parents=True)
    seen = machine.look(tmp_path, root)
    assert seen.facts["os"] == "Debian GNU/Linux 12 (bookworm)"
    assert seen.facts["cpu_model"] == "AMD EPYC 9654"
    assert [disk.mount for disk in seen.disks] == ["/mnt/a b"], "a network disk whose server is gone would hang us"


def test_the_owner_keeps_something_back_and_sick_gpus_do_not_count() -> None:
    """What is promised to work is never the whole machine."""
    seen = machine.Machine(cpu_millis=2000, memory_mib=1000, disk_mib=100, cgroup="v2")
    config = Config(reserved_cpu_millis=500, reserved_memory_mib=128, reserved_disk_mib=256)
    promised = total(seen, config, [Gpu(0, "a", "H100", 80), Gpu(1, "b", "H100", 80, healthy=False)])
    assert (promised.cpu_millis, promised.memory_mib, promised.disk_mib, promised.gpus) == (1500, 872, 0, 1)


@pytest.mark.parametrize(
    ("listening", "told"),
    [
        (None, []),
        (("127.0.0.1", 9), ["https://127.0.0.1:9"]),
        (("::1", 9), ["https://[::1]:9"]),
        (("0.0.0.0", 9), ["https://10.0.0.2:9"]),
        (("::", 9), ["https://10.0.0.2:9", "https://[fd00::2]:9"]),
    ],
)
def test_urls_name_only_what_is_listened_on(listening: tuple[str, int] | None, told: list[str]) -> None:
    """A client that tries an address nobody serves waits for nothing."""
    assert urls(listening, ["10.0.0.2", "fd00::2"]) == told
