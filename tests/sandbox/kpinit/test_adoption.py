"""What outlives an agent and a spawner, and how the next ones find it."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Any

from kernpool_sandbox.kpinit.channel import wait_fd
from kernpool_sandbox.kpinit.encoding import encode_exec
from kernpool_sandbox.kpinit.init import InitClient
from kernpool_sandbox.kpinit.plan import ExecCause, ExecSpec, Reattached, Stream
from kernpool_sandbox.kpinit.record import EndCause
from kernpool_sandbox.kpinit.wire import Op


async def rest_of(stream: Stream) -> bytes:
    """Read what was kept and then what still comes."""
    data = stream.kept
    while stream.fd >= 0:
        await wait_fd(stream.fd, timeout_s=10)
        with contextlib.suppress(BlockingIOError):
            chunk = os.read(stream.fd, 65536)
            if not chunk:
                break
            data += chunk
    if stream.fd >= 0:
        os.close(stream.fd)
    return data


async def again(box: Any, exec_id: int) -> tuple[InitClient, Reattached]:
    """Attach as a new agent and take over an exec."""
    client = await InitClient.attach(box.spawned.socket_path, box.on_event)
    return client, await client.reattach(exec_id)


def drop_agent(box: Any, *fds: int) -> None:
    """Do what the kernel does when an agent is killed."""
    box.client.close()
    for fd in fds:
        os.close(fd)


async def test_a_new_agent_finds_everything_as_it_was(node: Any) -> None:
    """kill -9 of the agent: claimed sandboxes, running and ended commands are all there afterwards."""
    box = await node.box()
    await box.run("sh", "-c", "exit 42", ack=False)
    started = await box.client.exec(ExecSpec(7, ("sleep", "1000")))
    drop_agent(box, started.stdout_fd, started.stderr_fd)
    box.client = await InitClient.attach(box.spawned.socket_path, box.on_event)
    hello = box.client.hello
    assert (hello.claimed, hello.execs, hello.pid) == (True, 2, box.spawned.pid)
    assert 50_000 < hello.ttl_left_ms <= 60_000
    rows = {row.exec_id: (row.running, row.exit_code) for row in await box.client.list()}
    assert rows == {101: (False, 42), 7: (True, 0)}


async def test_no_output_is_lost_while_nobody_is_attached(node: Any) -> None:
    """The writer neither dies of SIGPIPE nor loses a byte that fits the ring."""
    box = await node.box()
    script = "echo before; read x; seq 1 9000; echo done >&2"
    spec = ExecSpec(1, ("sh", "-c", script), stdin=True, keep_ring_bytes=128 * 1024)
    started = await box.client.exec(spec)
    await wait_fd(started.stdout_fd)
    assert os.read(started.stdout_fd, 100) == b"before\n"
    stdin = os.dup(started.stdin_fd)
    drop_agent(box, started.stdout_fd, started.stderr_fd, started.stdin_fd)
    os.write(stdin, b"go\n")
    os.close(stdin)
    box.client = await InitClient.attach(box.spawned.socket_path, box.on_event)
    await box.wait_ended(1)
    back = await box.client.reattach(1)
    assert await rest_of(back.stdout) == b"".join(b"%d\n" % i for i in range(1, 9001))
    assert await rest_of(back.stderr) == b"done\n"
    assert back.stdout.dropped_bytes == 0


async def test_what_overflows_the_ring_is_counted(node: Any) -> None:
    """An hour of output without an agent: the end is kept, and how much is missing is known exactly."""
    box = await node.box()
    spec = ExecSpec(1, ("sh", "-c", "seq 1 200000"), keep_ring_bytes=4096)
    started = await box.client.exec(spec)
    drop_agent(box, started.stdout_fd, started.stderr_fd)
    total = len(b"".join(b"%d\n" % i for i in range(1, 200001)))
    box.client = await InitClient.attach(box.spawned.socket_path, box.on_event)
    await box.wait_ended(1)
    back = await box.client.reattach(1)
    data = await rest_of(back.stdout)
    assert data.endswith(b"199999\n200000\n")
    assert back.stdout.dropped_bytes + len(data) == total
    assert len(back.stdout.kept) <= 4096


async def test_the_newest_agent_wins(node: Any) -> None:
    """During an upgrade two agents are alive for a moment: only one may command."""
    box = await node.box()
    second = await InitClient.attach(box.spawned.socket_path)
    await asyncio.wait_for(box.gone.wait(), 10)
    await second.ping()
    second.close()


async def test_an_agent_that_stays_silent_does_not_take_over(node: Any) -> None:
    """A port scanner on the socket must not cut the agent off."""
    import socket

    box = await node.box()
    strangers = []
    for _ in range(5):
        stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stranger.connect(box.spawned.socket_path)
        strangers.append(stranger)
    strangers[-1].send(b"\x02" + bytes(15))
    await box.client.ping()
    for stranger in strangers:
        stranger.close()


async def test_sandboxes_outlive_their_spawner_and_the_next_one_can_kill_them(node: Any, restart_spawner: Any) -> None:
    """The spawner is restarted for an upgrade: nothing stops, and kill still works on what it did not make."""
    box = await node.box()
    await restart_spawner(node)
    assert await node.client.list() == []
    assert await box.sh("echo alive") == "alive\n"
    await node.client.kill(box.id)
    await wait_fd(box.spawned.pidfd, timeout_s=10)
    assert (await node.wait_record(box.id)).cause is EndCause.KILLED
    await restart_spawner(node)
    assert not Path(box.spawned.socket_path).exists()


async def test_a_second_spawner_in_one_directory_is_refused(node: Any, second_spawner: Any) -> None:
    """Two spawners would unlink each other's sockets."""
    process = second_spawner(node)
    assert process.wait(10) == 75
    await node.client.ping()


async def test_an_exec_asked_for_as_the_agent_died_is_found_in_the_list(node: Any) -> None:
    """The request was sent and the agent died before the answer came."""
    box = await node.box()
    box.client._channel.request(Op.EXEC, 5, body=encode_exec(ExecSpec(5, ("sh", "-c", "echo hi; exit 3"))))
    box.client.close()
    box.client = await InitClient.attach(box.spawned.socket_path, box.on_event)
    row = await box.wait_ended(5)
    assert (row.exit_code, row.cause) == (3, ExecCause.EXITED)
    back = await box.client.reattach(5)
    assert await rest_of(back.stdout) == b"hi\n"


async def test_a_frozen_agent_does_not_stop_a_command(node: Any) -> None:
    """An agent in a long pause (swap, a debugger) only stops reading: its commands wait, they do not die."""
    box = await node.box()
    started = await box.client.exec(ExecSpec(1, ("sh", "-c", "head -c 300000 /dev/zero; echo end >&2")))
    await wait_fd(started.stdout_fd)
    assert (await box.client.list())[0].running
    drop_agent(box, started.stdout_fd, started.stderr_fd)
    client, back = await again(box, 1)
    box.client = client
    assert len(await rest_of(back.stdout)) + back.stdout.dropped_bytes == 300000
    assert await rest_of(back.stderr) == b"end\n"


async def test_signals_reach_adopted_commands(node: Any) -> None:
    """A new agent can cancel what the old one started."""
    box = await node.box()
    started = await box.client.exec(ExecSpec(1, ("sleep", "1000")))
    drop_agent(box, started.stdout_fd, started.stderr_fd)
    box.client = await InitClient.attach(box.spawned.socket_path, box.on_event)
    await box.client.signal(1, signal.SIGTERM)
    assert (await asyncio.wait_for(box.exit_of(1), 10)).cause is ExecCause.SIGNALLED
