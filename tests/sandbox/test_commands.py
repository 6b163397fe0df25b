"""Commands in a real sandbox: what people and programs run, and what such programs do to a runtime."""

import asyncio
import signal
import time

import pytest
import pytest_asyncio

from kernpool_mesh.messages import Command, CommandResult
from kernpool_mesh.reasons import EndReason
from tests.sandbox.conftest import Node, find, until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def box(shared: Node) -> str:
    return await shared.sandbox(ttl_s=600)


async def run(node: Node, box: str, *argv: str, **options: object) -> CommandResult:
    return await node.runtime.run(box, Command(list(argv), **options))  # type: ignore[arg-type]


async def test_stdout_and_stderr_are_kept_apart(shared: Node, box: str) -> None:
    """A test runner parses the one and shows the other."""
    result = await shared.sh(box, "echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code) == (b"out\n", b"err\n", 3)
    assert (result.reason, result.detail) == (EndReason.EXITED, "")


@pytest.mark.parametrize(
    ("argv", "code", "detail"),
    [
        (["no-such-program"], 127, "no-such-program could not be started: No such file or directory"),
        (["/no/such/program"], 127, "could not be started: No such file"),
        (["/etc/passwd"], 126, "/etc/passwd could not be started: Permission denied"),
        (["/tmp/garbage"], 126, "could not be started: Exec format error"),
        (["/"], 126, "could not be started: Permission denied"),
    ],
)
async def test_a_command_that_cannot_start_is_told_like_a_shell_does(
    shared: Node, box: str, argv: list[str], code: int, detail: str
) -> None:
    """A typing error in a task."""
    await shared.sh(box, r"printf '\001\002\003\004' > /tmp/garbage; chmod +x /tmp/garbage")
    result = await run(shared, box, *argv)
    assert (result.reason, result.exit_code) == (EndReason.START_FAILED, code)
    assert detail in result.detail


async def test_an_unknown_user_or_directory_is_a_failed_start(shared: Node, box: str) -> None:
    """The image has no such user."""
    result = await run(shared, box, "true", user="nobody-of-this-name")
    assert (result.reason, result.exit_code) == (EndReason.START_FAILED, 126)
    result = await run(shared, box, "true", cwd="/no/such/dir")
    assert result.reason is EndReason.START_FAILED


async def test_a_command_killed_by_a_signal_is_told_with_its_name(shared: Node, box: str) -> None:
    """A segmentation fault."""
    result = await shared.sh(box, "kill -SEGV $$")
    assert (result.reason, result.exit_code) == (EndReason.KILLED, 139)
    assert result.detail == "killed by signal 11 (SIGSEGV)"
    result = await shared.sh(box, "kill -KILL $$")
    assert (result.reason, result.exit_code) == (EndReason.KILLED, 137)


async def test_output_is_cut_at_its_bound_and_counted(shared: Node, box: str) -> None:
    """A command that writes a hundred megabytes by mistake costs the agent one."""
    size = 100_000_000
    result = await shared.sh(box, f"head -c {size} /dev/zero; echo end >&2", output_bytes_max=1_000_000)
    assert len(result.stdout) == 1_000_000
    assert result.stdout_bytes_dropped == size - 1_000_000
    assert result.stderr == b"end\n"
    assert result.exit_code == 0
    result = await shared.sh(box, "echo hello", output_bytes_max=0)
    assert (result.stdout, result.stdout_bytes_dropped) == (b"", 6)


async def test_output_just_before_the_exit_is_never_lost(shared: Node, box: str) -> None:
    """The exit is told on another channel than the output."""
    sizes = [1, 4096, 65536, 65537, 1_000_000]
    results = await asyncio.gather(*(run(shared, box, "head", "-c", str(size), "/dev/zero") for size in sizes * 4))
    assert [len(result.stdout) for result in results] == sizes * 4


async def test_stdin_is_fed_to_its_end(shared: Node, box: str) -> None:
    """A patch is piped into `git apply`."""
    data = bytes(range(256)) * 4096
    result = await run(shared, box, "cat", stdin=data, output_bytes_max=2 << 20)
    assert result.stdout == data


async def test_a_command_that_never_reads_its_stdin_ends_all_the_same(shared: Node, box: str) -> None:
    """More input than a pipe holds, and nobody takes it."""
    result = await run(shared, box, "sleep", "0.05", stdin=b"x" * 1_000_000)
    assert (result.reason, result.exit_code) == (EndReason.EXITED, 0)
    result = await shared.sh(box, "exec <&-; sleep 0.05; echo closed", stdin=b"x" * 1_000_000)
    assert result.stdout == b"closed\n"


async def test_without_stdin_a_reader_sees_its_end_at_once(shared: Node, box: str) -> None:
    """A program that asks a question must not hang for ever."""
    result = await shared.sh(box, "cat; echo end")
    assert result.stdout == b"end\n"


async def test_grandchildren_that_hold_the_pipes_hold_nobody_up(shared: Node, box: str) -> None:
    """`npm start &` in a script."""
    began = time.monotonic()
    result = await shared.sh(box, "sleep 30 & echo started")
    assert time.monotonic() - began < 5
    assert (result.stdout, result.exit_code) == (b"started\n", 0)
    assert (await shared.sh(box, "pidof sleep && kill $(pidof sleep)")).exit_code == 0


async def test_a_grandchild_that_writes_without_end_holds_nobody_up(shared: Node, box: str) -> None:
    """`yes &` in a script."""
    began = time.monotonic()
    result = await shared.sh(box, "timeout 20 yes & echo started; exit 4")
    assert time.monotonic() - began < 5
    assert result.exit_code == 4
    await shared.sh(box, "kill -9 $(pidof yes timeout)")


async def test_a_timeout_kills_every_descendant(shared: Node, box: str) -> None:
    """Daemons that left the session and children that ignore SIGTERM die with their command."""
    script = "trap '' TERM; setsid sh -c 'sleep 1001 & sleep 1001' & (trap '' TERM; sleep 1001) & sleep 1001"
    began = time.monotonic()
    result = await shared.sh(box, script, timeout_s=0.3)
    assert time.monotonic() - began < 10
    assert (result.reason, result.exit_code) == (EndReason.TIMEOUT, 137)
    assert result.detail == "it ran longer than its 0.3 s"
    assert (await shared.sh(box, find("sleep 1001"))).stdout == b""


async def test_a_caller_who_gives_up_ends_the_command(shared: Node, box: str) -> None:
    """The HTTP connection of a foreground exec breaks."""
    task = asyncio.create_task(shared.sh(box, "sleep 1002"))
    while (await shared.sh(box, find("sleep 1002"))).exit_code:
        assert not task.done()
    task.cancel()
    await asyncio.wait([task])
    for _ in range(500):
        if (await shared.sh(box, find("sleep 1002"))).exit_code:
            return
    raise AssertionError("the command lives on")


async def test_many_commands_run_at_once(shared: Node, box: str) -> None:
    """A tool-using model fires forty calls."""
    results = await asyncio.gather(*(shared.sh(box, f"echo {number}") for number in range(40)))
    assert [int(result.stdout) for result in results] == list(range(40))


async def test_hundreds_of_commands_one_after_another_leak_nothing(shared: Node, box: str) -> None:
    """A long session; kp-init's table of commands has a bound, so each one must be forgotten."""
    from tests.sandbox.conftest import open_files

    before = open_files()
    for _ in range(300):
        assert (await run(shared, box, "true")).exit_code == 0
    await until(lambda: open_files() == before, 5, "as few descriptors as before")


# --- streams ---


async def test_streams_come_as_they_are_written(shared: Node, box: str) -> None:
    """A person watches a build."""
    process = await shared.runtime.exec(box, Command(["sh", "-c", "echo one; read x; echo two $x >&2"]), stdin=True)
    assert await process.stdout.read() == b"one\n"
    await process.write_stdin(b"go\n")
    assert await process.stderr.read() == b"two go\n"
    result = await process.wait()
    assert (result.exit_code, result.reason) == (0, EndReason.EXITED)
    assert await process.stdout.read() == b""
    assert await process.stderr.read() == b""
    process.close()


async def test_a_slow_reader_slows_the_command_and_loses_nothing(shared: Node, box: str) -> None:
    """Ten megabytes through a client on a slow line: the agent holds a window, not the whole."""
    script = "head -c 10000000 /dev/zero; touch /tmp/written"
    process = await shared.runtime.exec(box, Command(["sh", "-c", script]), stdin=False)
    assert (await shared.sh(box, "test -e /tmp/written")).exit_code == 1, "nobody read, so it waits"
    total = 0
    async for chunk in process.stdout:
        total += len(chunk)
        await asyncio.sleep(0)
    assert total == 10_000_000
    assert (await process.wait()).exit_code == 0
    process.close()


async def test_a_client_that_reads_only_after_the_end_gets_what_was_written(shared: Node, box: str) -> None:
    """wait() first, then the output."""
    process = await shared.runtime.exec(box, Command(["sh", "-c", "echo out; echo err >&2; exit 5"]), stdin=False)
    assert (await process.wait()).exit_code == 5
    assert b"".join([chunk async for chunk in process.stdout]) == b"out\n"
    assert b"".join([chunk async for chunk in process.stderr]) == b"err\n"
    process.close()


async def test_a_signal_reaches_the_command_and_is_told_as_asked_for(shared: Node, box: str) -> None:
    """Ctrl-C, and then in earnest."""
    script = "trap 'echo caught; exit 9' INT; echo up; while :; do sleep 0.02; done"
    process = await shared.runtime.exec(box, Command(["sh", "-c", script]), stdin=False)
    assert await process.stdout.read() == b"up\n"
    await process.signal(signal.SIGINT)
    assert await process.stdout.read() == b"caught\n"
    assert (await process.wait()).exit_code == 9
    await process.signal(signal.SIGTERM)
    process.close()
    process = await shared.runtime.exec(box, Command(["sleep", "1003"]), stdin=False)
    await process.signal(signal.SIGTERM)
    result = await process.wait()
    assert (result.reason, result.exit_code) == (EndReason.CANCELLED, 143)
    process.close()


async def test_a_process_that_ignores_sigterm_dies_of_a_kill_of_its_tree(shared: Node, box: str) -> None:
    """A stubborn server with workers."""
    script = "trap '' TERM; (trap '' TERM; sleep 1004) & echo up; sleep 1004; sleep 1004"
    process = await shared.runtime.exec(box, Command(["sh", "-c", script]), stdin=False)
    assert await process.stdout.read() == b"up\n"
    await process.signal(signal.SIGTERM, tree=True)
    await process.signal(signal.SIGKILL, tree=True)
    assert (await process.wait()).exit_code == 137
    assert (await shared.sh(box, find("sleep 1004"))).stdout == b""
    process.close()


async def test_a_stream_of_a_command_that_cannot_start_is_over(shared: Node, box: str) -> None:
    """The same result as in the foreground."""
    process = await shared.runtime.exec(box, Command(["nope"]), stdin=True)
    result = await process.wait()
    assert (result.reason, result.exit_code) == (EndReason.START_FAILED, 127)
    assert await process.stdout.read() == b""
    await process.write_stdin(b"x")
    process.close_stdin()
    process.close()


async def test_a_stream_ends_when_its_sandbox_is_removed(shared: Node) -> None:
    """The sandbox is deleted under an open terminal."""
    box = await shared.sandbox()
    process = await shared.runtime.exec(box, Command(["sleep", "1005"]), stdin=False)
    await shared.runtime.remove([box])
    result = await process.wait()
    assert (result.reason, result.exit_code) == (EndReason.CANCELLED, 137)
    assert await process.stdout.read() == b""
    process.close()


async def test_a_port_inside_can_be_reached_from_the_node(shared: Node, box: str) -> None:
    """A web server in a sandbox without any network of its own."""
    server = (
        "import socket; s = socket.socket(); s.bind(('127.0.0.1', 8080)); s.listen(); print('up', flush=True)\n"
        "c, _ = s.accept(); c.sendall(c.recv(100).upper()); c.close()"
    )
    process = await shared.runtime.exec(box, Command(["python3", "-c", server]), stdin=False)
    first = await process.stdout.read()
    if not first:
        await process.wait()
        pytest.skip("the host has no python3 under /usr")
    with pytest.raises(ConnectionRefusedError):
        await shared.runtime.connect(box, 8081)
    connection = await shared.runtime.connect(box, 8080)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(connection, b"hello")
    assert await loop.sock_recv(connection, 100) == b"HELLO"
    connection.close()
    assert (await process.wait()).exit_code == 0
    process.close()
