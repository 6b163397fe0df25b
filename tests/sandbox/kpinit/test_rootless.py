"""An ordinary user's spawner: one id, no idmap, no capability, and still a sandbox."""

from pathlib import Path
from typing import Any

import pytest

from kernpool_sandbox.kpinit.files import InitFiles
from kernpool_sandbox.kpinit.plan import Bind, ExecCause, JobPlan, JobUser, Step


async def test_an_ordinary_user_has_sandboxes_too(rootless_node: Any) -> None:
    """On a Slurm node or in a pod nobody is root."""
    assert not rootless_node.privileged
    status = Path(f"/proc/{rootless_node.process.pid}/status").read_text()
    assert "CapEff:\t0000000000000000" in status
    box = await rootless_node.box()
    assert await box.sh("id -u; id -g; echo x > /tmp/x; cat /tmp/x") == "0\n0\nx\n"
    assert "CapEff:\t00000000800404fb" in await box.sh("grep CapEff /proc/self/status")
    result = await box.run("sh", "-c", "sleep 1000 & sleep 1000", timeout_s=0.1)
    assert result.exit.cause is ExecCause.TIMEOUT
    files = InitFiles(box.client)
    await files.write("/tmp/f", b"data")
    assert b"".join([chunk async for chunk in files.read("/tmp/f")]) == b"data"


async def test_one_id_means_one_user(rootless_node: Any) -> None:
    """Another user cannot be had with a single-id mapping: an error, not a silent root."""
    box = await rootless_node.box()
    with pytest.raises(OSError, match="Invalid"):
        await box.run("true", user="bob")


async def test_ranges_idmap_and_other_users_are_refused(rootless_node: Any) -> None:
    """What only root can give is an error that says so."""
    with pytest.raises(PermissionError):
        await rootless_node.park(uid_map_start=0x50000000, uid_map_count=65536)
    plan = JobPlan("j-1", (Step("run", ("true",)),), {}, "/", user=JobUser(0, 0))
    with pytest.raises(PermissionError):
        await rootless_node.client.spawn_job("j-1", plan)


async def test_host_files_are_read_only(rootless_node: Any, state_dir: Path) -> None:
    """A bind of the user's own files must not become a way to change them."""
    data = state_dir / "mine"
    data.mkdir(mode=0o777)
    data.chmod(0o777)
    box = await rootless_node.box(Bind(str(data), "/data"))
    assert b"Read-only" in (await box.run("touch", "/data/x")).stderr
    assert (await box.run("mount", "-o", "remount,rw", "/data")).code != 0
