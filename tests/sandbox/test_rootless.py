"""The same runtime as an ordinary user: single id, read-only /usr, rlimits where the user has no cgroup."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox.conftest import USER_UID, AsUser, end_leftovers, mounts

STORY = """
import asyncio, json, os, sys, tarfile
from pathlib import Path
from kernpool_mesh.messages import Command, Limits, PoolTarget, Template
from kernpool_sandbox.config import RuntimeConfig
from kernpool_sandbox.pool import PoolPolicy
from kernpool_sandbox.runtime import SandboxRuntime

state = Path(sys.argv[1])
POLL_S = 0.01

async def main():
    updates = []
    config = RuntimeConfig(state, pool=PoolPolicy(auto_max=0, auto_min=0))
    runtime = await SandboxRuntime.open(config, on_update=updates.extend)
    isolation = runtime.isolation
    told = {"isolation": isolation.isolation, "limits": isolation.limits, "uids": isolation.uids,
            "idmap": isolation.idmap, "overlay": isolation.overlay, "problems": isolation.problems}
    try:
        if isolation.works:
            await story(runtime, told, updates)
    finally:
        await runtime.shutdown()
    told["left"] = [str(path) for name in ("s", "j") for path in (state / name).glob("*")]
    print(json.dumps(told))

async def story(runtime, told, updates):
    async def sh(box, script, **options):
        result = await runtime.run(box, Command(["/bin/sh", "-c", script], **options))
        return [str(result.reason), result.exit_code, result.stdout.decode(), result.stderr.decode()]
    limits = Limits(memory_mib=256, disk_mib=16, pids=60)
    await runtime.create("a", Template(limits=limits), ttl_s=60)
    told["id"] = await sh("a", "id -u; cat /proc/self/uid_map | tr -s ' '; ls /home /root; cat /etc/hostname")
    places = "/tmp /root /home /var /opt /usr/local /etc /run"
    told["write"] = await sh("a", f"for d in {places}; do echo x > $d/f || echo no $d; done")
    told["usr"] = await sh("a", "echo x > /usr/bin/f")
    told["shadow"] = await sh("a", "cat /etc/shadow | cut -c1-6 | head -1; ls /etc/ssh")
    told["host"] = await sh("a", f"ls {state} /boot /work /srv/* 2>/dev/null; cat /proc/1/cmdline | tr '\\\\0' ' '")
    told["memory"] = await sh("a", "exec tail /dev/zero", timeout_s=20)
    told["disk"] = await sh("a", "head -c 100000000 /dev/zero > /tmp/full")
    await sh("a", "rm /tmp/full")
    await runtime.create("bomb", Template(limits=limits), ttl_s=60)
    told["forks"] = await sh("bomb", "i=0; while [ $i -lt 200 ]; do sleep 20 & i=$((i+1)); done; wait", timeout_s=5)
    told["timeout"] = await sh("a", "setsid sh -c 'sleep 1000' & sleep 1000", timeout_s=0.3)
    await runtime.create("ttl", Template(), ttl_s=0.3)
    told["ttl"] = await sh("ttl", "sleep 60")
    files = runtime.files("a")
    await files.write("/tmp/x", b"from outside")
    told["file"] = await sh("a", "cat /tmp/x")
    archive = state / "image.tar"
    with tarfile.open(archive, "w") as tar:
        for path in ("/bin/busybox", "/usr/bin/busybox"):
            if os.path.exists(path):
                tar.add(os.path.realpath(path), "bin/sh")
                break
        else:
            archive = None
    if archive is not None:
        archive = archive.rename(state.parent / (state.name + ".tar"))
        try:
            await runtime.create("image", Template(image=str(archive), limits=limits), ttl_s=60)
            told["image"] = await sh("image", "echo x > /new && cat /new; echo y > /bin/z && echo ok")
        finally:
            archive.unlink()
    runtime.set_pools([PoolTarget(Template(limits=limits), 5, 0)])
    while runtime.statistics().parked < 5:
        await asyncio.sleep(POLL_S)
    told["parked"] = (await runtime.create("p", Template(limits=limits), ttl_s=60)).parked
    await runtime.remove(["a", "bomb", "p", "ttl"])

asyncio.run(main())
"""


@pytest.fixture
def user_dir() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="kpu-"))
    os.chown(directory, USER_UID, USER_UID)
    yield directory / "s"
    end_leftovers(directory / "s")
    shutil.rmtree(directory, ignore_errors=True)


def processes_of_user() -> list[str]:
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text()
        except OSError:
            continue
        if f"\nUid:\t{USER_UID}\t" in text and "\nState:\tZ" not in text:
            found.append((status.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


def test_an_ordinary_user_has_sandboxes_that_say_what_they_lack(as_user: AsUser, user_dir: Path) -> None:
    """A Slurm node, a laptop: no root anywhere, and nothing is left behind."""
    before, mounted = processes_of_user(), mounts()
    told: dict[str, Any] = json.loads(as_user(STORY, str(user_dir), timeout_s=55))
    if not told["isolation"]:
        pytest.skip("no sandboxes here: " + " ".join(told["problems"]))
    assert (told["uids"], told["idmap"]) == ("single", False)
    assert any("install as root for ranges of ids" in problem for problem in told["problems"])
    assert told["id"][2].split("\n")[0] == "0"
    assert f" 0 {USER_UID} 1" in told["id"][2]
    assert told["id"][2].endswith("sandbox\n")
    assert told["write"][2:] == ["", ""]
    assert "Read-only" in told["usr"][3]
    assert told["shadow"][2] == "root:*\n"
    assert str(user_dir) not in told["host"][2]
    assert told["disk"][0] == "disk_full"
    assert "ork" in told["forks"][3]
    assert (told["timeout"][0], told["timeout"][1]) == ("timeout", 137)
    assert told["ttl"][0] == "ttl"
    assert told["file"][2] == "from outside"
    assert told.get("image", ["", 0, "x\nok\n"])[2] == "x\nok\n"
    assert told["parked"] is True
    assert told["left"] == []
    if told["limits"] == "rlimit":
        assert any("rlimits" in problem for problem in told["problems"])
        assert told["memory"][0] in ("exited", "killed")
        assert told["memory"][1] != 0
    else:
        assert told["memory"][0] == "oom"
    assert [line for line in processes_of_user() if line not in before] == []
    assert mounts() == mounted
