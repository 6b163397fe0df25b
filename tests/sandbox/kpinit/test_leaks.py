"""A sandbox leaves no process, mount, cgroup, socket, descriptor or memory behind."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernpool_sandbox.kpinit.channel import wait_fd
from kernpool_sandbox.kpinit.plan import ExecSpec
from kernpool_sandbox.kpinit.record import EndCause

V1 = Path("/sys/fs/cgroup")


def footprint(node: Any) -> dict[str, int]:
    """Count what a sandbox could leave on the host."""
    pid = node.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return {
        "processes": len(children.read_text().split()),
        "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "own descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "mounts": len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines()),
        "sockets": len(list((node.config.state_dir / "s").glob("*.sock"))),
        "memory KiB": int(Path(f"/proc/{pid}/statm").read_text().split()[5]) // 64,
    }


async def use_and_end(node: Any, how: int) -> None:
    """Let a sandbox run something and end it in one of four ways."""
    box = await node.box()
    started = await box.client.exec(ExecSpec(1, ("sh", "-c", "sleep 1000 & sleep 1000")))
    os.close(started.stdout_fd)
    os.close(started.stderr_fd)
    if how == 0:
        await box.client.shutdown()
    elif how == 1:
        await node.client.kill(box.id)
    elif how == 2:
        await box.client.extend(0.001)
    else:
        os.kill(box.spawned.pid, signal.SIGKILL)
    box.client.close()
    await wait_fd(box.spawned.pidfd, timeout_s=20)
    os.close(box.spawned.pidfd)
    node.boxes.remove(box)


async def test_a_hundred_sandboxes_leave_nothing(node: Any, until: Any) -> None:
    """However they end: asked, killed, out of time, or dead by themselves."""
    await use_and_end(node, 0)
    await until(lambda: len(node.ended) == 1, "the first one is reaped")
    before = footprint(node)
    for how in range(25):
        await asyncio.gather(*(use_and_end(node, (how + i) % 4) for i in range(4)))
    await until(lambda: len(node.ended) == 101, "all are reaped")
    assert footprint(node) == before
    causes = {node.record(event.id).cause for event in node.ended}
    assert causes == {EndCause.SHUTDOWN, EndCause.KILLED, EndCause.TTL, EndCause.DIED}


@pytest.fixture
def cgroups() -> Iterator[list[Path]]:
    """A directory in each of three v1 hierarchies, or one of v2."""
    if os.geteuid() != 0:
        pytest.skip("needs root: makes cgroups")
    roots = [V1 / name for name in ("memory", "pids", "cpu") if (V1 / name / "tasks").exists()] or [V1]
    made = []
    for root in roots:
        path = root / f"kp-test-{os.getpid()}"
        try:
            path.mkdir()
        except OSError as error:
            pytest.skip(f"this machine lets nobody make cgroups: {error}")
        made.append(path)
    yield made
    for path in made:
        path.rmdir()


def members(cgroup: Path) -> list[str]:
    return (cgroup / "cgroup.procs").read_text().split()


async def test_a_sandbox_lives_in_the_cgroups_it_was_given(node: Any, cgroups: list[Path], until: Any) -> None:
    """Limits hold for PID 1 and for all it starts; afterwards the directories are empty and can go."""
    box = await node.box(cgroups=tuple(map(str, cgroups)))
    started = await box.client.exec(ExecSpec(1, ("sleep", "1000")))
    os.close(started.stdout_fd)
    os.close(started.stderr_fd)
    for cgroup in cgroups:
        assert str(box.spawned.pid) in members(cgroup)
        assert len(members(cgroup)) == 3
    lines = (await box.sh("cat /proc/self/cgroup")).splitlines()
    assert not any("kp-test" in line for line in lines)
    await box.client.shutdown()
    await until(lambda: not any(members(cgroup) for cgroup in cgroups), "the cgroups are empty")


async def test_cgroups_outside_the_ceiling_are_refused(node: Any, state_dir: Path) -> None:
    """A request must not write a pid into any file of the host that is called `tasks`."""
    (state_dir / "fake").mkdir()
    (state_dir / "fake" / "tasks").touch()
    with pytest.raises(PermissionError):
        await node.park(cgroups=(str(state_dir / "fake"),))
    with pytest.raises(OSError, match=r"cross-device|No such|not permitted"):
        await node.park(cgroups=("/sys/fs/cgroup/../../../etc",))
    with pytest.raises(FileNotFoundError):
        await node.park(cgroups=("/sys/fs/cgroup/kp-no-such-group",))


async def test_a_spawn_that_fails_leaves_nothing(node: Any, until: Any) -> None:
    """A refused plan leaves no record, no socket and no half-built child."""
    with pytest.raises(PermissionError):
        await node.park(cgroups=("/etc",))
    before = footprint(node)
    for _ in range(20):
        with contextlib.suppress(OSError):
            await node.park(cgroups=("/etc",))
    await until(lambda: footprint(node) == before, "nothing is left")
    assert list((node.config.state_dir / "s").iterdir()) == []


async def test_a_spawner_killed_in_the_midst_of_spawns_leaves_nothing(
    node: Any, restart_spawner: Any, until: Any
) -> None:
    """kill -9 during a burst: what was half built ends by itself, the rest by its parked deadline."""
    plans = [(node.new_id(), node.plan(parked_ttl_s=1.0)) for _ in range(30)]
    waiting = [asyncio.ensure_future(node.client.spawn(*plan)) for plan in plans]
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    await restart_spawner(node)
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        if not isinstance(result, BaseException):
            await wait_fd(result.pidfd, timeout_s=20)
            os.close(result.pidfd)
    assert len(done) >= 1

    def answering() -> list[str]:
        return [path.name for path in (node.config.state_dir / "s").glob("*.sock")]

    await until(lambda: not _any_process(node.config.state_dir), "no half-built sandbox is left")
    await restart_spawner(node)
    assert answering() == []


def _any_process(state_dir: Path) -> bool:
    """Say whether a process other than the spawner still has a record of this state directory open."""
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        try:
            links = [str(fd.readlink()) for fd in (process / "fd").iterdir()]
        except OSError:
            continue
        if any(link.startswith(str(state_dir / "s")) and link.endswith(".end") for link in links):
            return True
    return False
