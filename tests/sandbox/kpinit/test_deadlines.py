"""Deadlines are kept by kp-init itself, whoever else is dead."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from kernpool_sandbox.kpinit.channel import wait_fd
from kernpool_sandbox.kpinit.plan import ExecCause, ExecSpec
from kernpool_sandbox.kpinit.record import EndCause

STUBBORN = "trap '' TERM INT HUP; setsid sh -c 'trap \"\" TERM; sleep 1000' & (sleep 1000 &); sleep 1000"


def processes_of(pid: int) -> int:
    """Count the processes of a sandbox's pid namespace."""
    wanted = Path(f"/proc/{pid}/ns/pid").readlink()
    count = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                count += (entry / "ns" / "pid").readlink() == wanted
            except OSError:
                continue
    return count


async def test_a_timeout_kills_every_descendant(node: Any, until: Any) -> None:
    """A test run that hangs has forked daemons that ignore SIGTERM and have left its process group."""
    box = await node.box()
    began = time.monotonic()
    result = await box.run("sh", "-c", STUBBORN, timeout_s=0.2)
    assert result.exit.cause is ExecCause.TIMEOUT
    assert result.code == 128 + signal.SIGKILL
    assert time.monotonic() - began < 5
    await until(lambda: processes_of(box.spawned.pid) == 1, "only PID 1 is left")


async def test_a_timeout_stops_a_fork_storm(node: Any, until: Any) -> None:
    """Processes that fork faster than they are counted must still all be gone at the end."""
    box = await node.box()
    storm = "f() { f & f & wait; }; g() { n=$1; [ $n -gt 0 ] && { g $((n-1)) & g $((n-1)) & }; sleep 100; }; g 6"
    result = await box.run("sh", "-c", storm, timeout_s=0.3)
    assert result.exit.cause is ExecCause.TIMEOUT
    await until(lambda: processes_of(box.spawned.pid) == 1, "only PID 1 is left")


async def test_an_exec_ends_with_its_leader_and_background_work_goes_on(node: Any) -> None:
    """`server &` in a tool call must return at once, keep the server, and not kill it by SIGPIPE later."""
    box = await node.box()
    started = await box.client.exec(
        ExecSpec(1, ("sh", "-c", "(while sleep 0.02; do echo tick || exit; echo x >> /tmp/ticks; done) & echo up"))
    )
    exited = await asyncio.wait_for(box.exit_of(1), 10)
    assert exited.exit_code == 0
    await box.client.ack(1)
    os.close(started.stdout_fd)
    os.close(started.stderr_fd)
    lines = "wc -l < /tmp/ticks"
    await box.sh(f"until [ -s /tmp/ticks ]; do :; done; n=$({lines}); until [ $({lines}) -gt $((n + 5)) ]; do :; done")


async def test_a_tree_kill_leaves_nobody(node: Any) -> None:
    """Cancelling a command takes its daemons with it, also after its leader has ended."""
    box = await node.box()
    started = await box.client.exec(ExecSpec(1, ("sh", "-c", STUBBORN.replace("sleep 1000", "sleep 999"))))
    await box.sh("until grep -qaz 999 /proc/[0-9]*/cmdline; do :; done")
    await box.client.signal(1, signal.SIGKILL, tree=True)
    await asyncio.wait_for(box.exit_of(1), 10)
    assert os.read(started.stdout_fd, 1) == b"" if await _eof(started.stdout_fd) else None
    os.close(started.stdout_fd)
    os.close(started.stderr_fd)


async def _eof(fd: int) -> bool:
    await wait_fd(fd, timeout_s=10)
    return True


async def test_a_killed_shim_is_reported_and_its_processes_go(root_node: Any) -> None:
    """Root inside may kill the process that watches a command: the command must not live on unseen."""
    box = await root_node.box()
    started = await box.client.exec(ExecSpec(1, ("sleep", "998")))
    await box.run("sh", "-c", f"kill -9 $(cut -d' ' -f4 /proc/{started.pid}/stat)")
    exited = await asyncio.wait_for(box.exit_of(1), 10)
    assert exited.cause is ExecCause.LOST
    await _eof(started.stdout_fd)
    assert os.read(started.stdout_fd, 1) == b""
    os.close(started.stdout_fd)
    os.close(started.stderr_fd)


async def test_the_time_to_live_ends_a_sandbox_when_everybody_is_dead(node: Any) -> None:
    """Killing agent and spawner and restarting nothing must still end every claimed sandbox."""
    box = await node.park()
    await box.client.claim("t", ttl_s=0.4)
    await box.client.exec(ExecSpec(1, ("sleep", "1000")))
    box.client.close()
    node.process.kill()
    await wait_fd(box.spawned.pidfd, timeout_s=10)
    assert (await node.wait_record(box.id)).cause is EndCause.TTL


async def test_extend_counts_anew_from_now(node: Any) -> None:
    """A sandbox that is still used gets more time, and a shorter time holds too."""
    box = await node.box()
    await box.client.extend(0.2)
    assert (await node.wait_record(box.id)).cause is EndCause.TTL


async def test_a_parked_sandbox_has_a_time_to_live_of_its_own(node: Any) -> None:
    """A pool that nobody drains must not stand for ever."""
    box = await node.park(parked_ttl_s=0.3)
    record = await node.wait_record(box.id)
    assert (record.cause, record.detail) == (EndCause.TTL, "parked and never claimed")


async def test_a_claim_lifts_the_parked_deadline(node: Any) -> None:
    """The pool's clock must not end what a user works in."""
    box = await node.park(parked_ttl_s=0.3)
    await box.client.claim("t", ttl_s=60)
    await box.sh("sleep 0.5")
    assert node.record(box.id) is None


@pytest.mark.full
async def test_an_unclaimed_sandbox_ends_30_s_after_its_agent(node: Any) -> None:
    """An agent that died while it filled its pool leaves nothing."""
    box = await node.park()
    box.client.close()
    assert (await node.wait_record(box.id, 45)).cause is EndCause.ORPHANED
