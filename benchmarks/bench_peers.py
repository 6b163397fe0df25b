"""The same step beside bubblewrap, crun and runc in the same run: python benchmarks/bench_peers.py

The step: make a fresh sandbox with its own user, mount, pid, net, ipc and uts namespaces, run `true` in it, have its
status, clear it away. Kernpool's is the whole way through the SDK, the coordinator and the agent; the others are
started directly with posix_spawn. Rounds are interleaved so that a noisy machine is noisy for all.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from kernpool.embedded.layout import Home
from kernpool.embedded.start import start
from kernpool.embedded.stop import stop
from kernpool.sdk import Client

Step = Callable[[], None]
ROUNDS = 100
BURST = 240
NAMESPACES = ("pid", "network", "ipc", "uts", "mount")
UNIFIED = "/sys/fs/cgroup/unified"


def main() -> int:
    """Measure and print the table."""
    if "--inside" not in sys.argv and os.geteuid() == 0:
        # crun refuses a hybrid cgroup layout: hide the unified mount, in a mount namespace of our own.
        command = f'[ ! -d {UNIFIED} ] || umount {UNIFIED}; exec "$0" "$@"'
        return subprocess.call(["unshare", "-m", "sh", "-c", command, sys.executable, *sys.argv, "--inside"])
    home = Home(Path(tempfile.mkdtemp(prefix="kp-bench-", dir="/tmp")))
    os.environ["KERNPOOL_HOME"] = str(home.path)
    try:
        start(home, api_port=0, node_listen="127.0.0.1:0", say=lambda _: None)
        with Client() as client, tempfile.TemporaryDirectory() as scratch:
            compare(client, Path(scratch))
    finally:
        stop(home, keep_work=False, say=lambda _: None)
        shutil.rmtree(home.path, ignore_errors=True)
    return 0


def compare(client: Client, scratch: Path) -> None:
    """Run the rounds, one after another and all at once."""
    commands = peers(scratch)
    one: dict[str, Step] = {"kernpool": partial(kernpool, client, 1)}
    one |= {name: partial(run, [command]) for name, command in commands.items()}
    burst: dict[str, Step] = {"kernpool": partial(kernpool, client, BURST)}
    burst |= {name: partial(run, [command] * BURST) for name, command in commands.items()}
    singles: dict[str, list[float]] = {name: [] for name in one}
    kernpool(client, 1)
    for _ in range(ROUNDS):
        for name, step in one.items():
            singles[name].append(timed(step))
    bursts = {name: sorted(timed(step) for _ in range(3)) for name, step in burst.items()}
    ours = sorted(singles["kernpool"])[ROUNDS // 2]
    print(f"{'':10} {'one: p50':>10} {'p99':>10} {'ratio':>7} {'240 at once: median of 3':>26} {'ratio':>7}")
    for name, walls in singles.items():
        p50, p99 = sorted(walls)[ROUNDS // 2], sorted(walls)[int(ROUNDS * 0.99)]
        all_s, our_all_s = bursts[name][1], bursts["kernpool"][1]
        one_by_one = f"{name:10} {p50 * 1e3:7.2f} ms {p99 * 1e3:7.2f} ms {p50 / ours:6.1f}x"
        print(f"{one_by_one} {all_s:24.2f} s {all_s / our_all_s:6.1f}x")
    machine = f"{os.cpu_count()} cores, Linux {platform.release()}, load {os.getloadavg()[0]:.1f}"
    print(f"{machine}, {time.strftime('%Y-%m-%d')}")


def timed(step: Callable[[], None]) -> float:
    """Seconds of one step."""
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def kernpool(client: Client, count: int) -> None:
    """The step by Kernpool, from the pool or cold as it comes."""
    batch = client.sandboxes.create(count=count, command=["true"], remove_after=True)
    assert all(item.result is not None and item.result.exit_code == 0 for item in batch)


def run(commands: list[list[str]]) -> None:
    """Start all of them at once and wait for their ends."""
    null = [(os.POSIX_SPAWN_OPEN, number, "/dev/null", os.O_RDWR, 0) for number in range(3)]
    pids = []
    for number, command in enumerate(commands):
        words = [word.replace("NUMBER", f"{os.getpid()}-{time.monotonic_ns()}-{number}") for word in command]
        pids.append(os.posix_spawn(words[0], words, os.environ, file_actions=null))
    failed = [status for pid in pids if (status := os.waitpid(pid, 0)[1])]
    assert not failed, f"{commands[0][0]}: {len(failed)} failed"


def peers(scratch: Path) -> dict[str, list[str]]:
    """The commands of those that are installed."""
    found: dict[str, list[str]] = {}
    if bwrap := shutil.which("bwrap"):
        found["bwrap"] = [
            bwrap,
            "--unshare-all",
            "--ro-bind",
            "/",
            "/",
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            "/bin/true",
        ]
    for name in ("crun", "runc"):
        if (path := shutil.which(name)) and os.geteuid() == 0:
            found[name] = [path, "run", "--bundle", str(bundle(scratch / name)), "kpbench-NUMBER"]
    return found


def bundle(directory: Path) -> Path:
    """An OCI bundle over the host's own files, read-only."""
    root = directory / "root"
    for name in ("usr", "proc", "dev"):
        (root / name).mkdir(parents=True)
    for link in ("bin", "lib", "lib64", "sbin"):
        (root / link).symlink_to(f"usr/{link}")
    # The runtime mounts /usr in its own namespace: nothing of the host is ever mounted below what we remove.
    mounts = [
        {"destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro", "nosuid", "nodev"]},
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
    ]
    config = {
        "ociVersion": "1.0.2",
        "process": {"args": ["/bin/true"], "cwd": "/", "env": ["PATH=/usr/bin:/bin"], "user": {"uid": 0, "gid": 0}},
        "root": {"path": str(root), "readonly": True},
        "mounts": mounts,
        "linux": {"namespaces": [{"type": kind} for kind in NAMESPACES]},
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory


if __name__ == "__main__":
    sys.exit(main())
