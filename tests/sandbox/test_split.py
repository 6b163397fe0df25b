"""The agent as an ordinary user beside a spawner that runs as root: how a systemd install stands."""

import asyncio
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernpool_sandbox.cgroup_detect import detect
from kernpool_sandbox.config import RuntimeConfig
from kernpool_sandbox.isolation import ask_kernel
from kernpool_sandbox.kpinit.launch import ensure_spawner
from kernpool_sandbox.startup import prepare_spawner
from tests.sandbox.conftest import USER_UID, AsUser, end_leftovers

STORY = """
import asyncio, json, sys
from pathlib import Path
from kernpool_mesh.messages import Command, Limits, PoolTarget, Template
from kernpool_sandbox.config import RuntimeConfig
from kernpool_sandbox.pool import PoolPolicy
from kernpool_sandbox.runtime import SandboxRuntime

state, parent, probed = sys.argv[1:]

async def main():
    config = RuntimeConfig(Path(state), pool=PoolPolicy(auto_max=0, auto_min=0), image_roots=(),
                           cgroup_parent=parent, probed=json.loads(probed))
    runtime = await SandboxRuntime.open(config, on_update=lambda _: None)
    isolation = runtime.isolation
    told = {"uids": isolation.uids, "limits": isolation.limits, "idmap": isolation.idmap}
    try:
        async def sh(box, script, **options):
            result = await runtime.run(box, Command(["/bin/sh", "-c", script], **options))
            return [str(result.reason), result.exit_code, result.stdout.decode(), result.stderr.decode()]
        limits = Limits(memory_mib=64, disk_mib=16, pids=60)
        await runtime.create("a", Template(limits=limits), ttl_s=60)
        told["owners"] = await sh("a", "stat -c '%n %u:%g %a' / /etc /etc/passwd /root /tmp /home/user /usr /bin/sh")
        told["home"] = await sh("a", "echo x > ~/f && stat -c %U ~/f; echo x > /etc/f", user="user")
        told["usr"] = await sh("a", "echo x > /usr/bin/f && cat /usr/bin/f; ls /usr/local/etc; stat -c %a /usr/bin/su")
        told["memory"] = await sh("a", "exec tail /dev/zero")
        await runtime.create("ttl", Template(limits=limits), ttl_s=0.3)
        told["ttl"] = await sh("ttl", "sleep 60")
        told["gone"] = await sh("a", "sleep 1000 & exit 0")
        await runtime.remove(["a"])
        runtime.set_pools([PoolTarget(Template(limits=limits), 3, 0)])
        while runtime.statistics().parked < 3:
            await asyncio.sleep(POLL_S)
        told["parked"] = (await runtime.create("p", Template(limits=limits), ttl_s=60)).parked
    finally:
        await runtime.shutdown()
    print(json.dumps(told))

POLL_S = 0.01
asyncio.run(main())
"""


@pytest.fixture
def parent() -> Iterator[str]:
    """A cgroup that root gives to the agent's user, as `kp-agent work` does."""
    facts = detect()
    if facts.kind == "none":
        pytest.skip("no cgroups here: " + "; ".join(facts.problems))
    name = f"kptest-{secrets.token_hex(4)}"
    for top in facts.parents.values():
        hand_over(top / name)
    yield name
    for top in facts.parents.values():
        for path in ((top / name).glob("*/"), [top / name]):
            for directory in path:
                directory.rmdir()


def hand_over(directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    for name in ("", "cgroup.procs", "cgroup.subtree_control", "tasks"):
        if (directory / name).exists():
            os.chown(directory / name, USER_UID, USER_UID)


def test_an_agent_without_rights_uses_the_rights_of_its_spawner(as_user: AsUser, parent: str) -> None:
    """Link, HTTP and images run as `kernpool`; ranges of ids, mapped layers and limits are there all the same."""
    directory = Path(tempfile.mkdtemp(prefix="kpx-"))
    state = directory / "s"
    try:
        directory.chmod(0o755)
        state.mkdir(mode=0o700)
        os.chown(state, USER_UID, USER_UID)
        config = RuntimeConfig(state, image_roots=(), cgroup_parent=parent)
        binary, spawner = prepare_spawner(config, USER_UID)
        for base in spawner.allow_cgroups:
            hand_over(base)
        probed = asyncio.run(prepared(binary, spawner, directory))
        told: dict[str, Any] = json.loads(as_user(STORY, str(state), parent, json.dumps(probed), timeout_s=50))
    finally:
        end_leftovers(state)
        shutil.rmtree(directory, ignore_errors=True)
    assert (told["uids"], told["limits"]) == ("range", "cgroup")
    owners = dict(line.split(" ", 1) for line in told["owners"][2].splitlines())
    assert owners["/etc/passwd"] == "0:0 644"
    assert (owners["/root"], owners["/tmp"], owners["/home/user"]) == ("0:0 700", "0:0 1777", "1000:1000 755")
    assert owners["/etc"] == owners["/"] == "0:0 755"
    assert told["home"][2] == "user\n"
    assert "Permission denied" in told["home"][3]
    if told["idmap"]:
        assert told["usr"][2] == "x\n755\n"
    assert told["memory"][0] == "oom"
    assert told["ttl"][0] == "ttl"
    assert told["parked"] is True


async def prepared(binary: Path, spawner: Any, directory: Path) -> dict[str, str]:
    """Start the spawner and ask the kernel, both as root."""
    log = directory / "log"
    await ensure_spawner(spawner, binary, log_path=log)
    return await ask_kernel(directory)
