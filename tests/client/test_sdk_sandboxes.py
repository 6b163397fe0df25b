"""Sandboxes through the synchronous SDK, against a server that really runs their commands."""

import signal
import socketserver
import threading
from typing import Any

import pytest
from contract_server import ContractServer

from kernpool import ApiError, CommandFailedError, CutError, InvalidError, NotFoundError, Pool, Template
from kernpool.protocol.execution import Chunk, Exit
from kernpool.sdk import Client


def test_a_bulk_create_gives_a_result_each_and_leaves_nothing(client: Client, server: ContractServer) -> None:
    with client.sandboxes.create(20, command=["sh", "-c", "echo $N; echo e >&2"], env={"N": "7"}) as batch:
        assert (batch.created, batch.failed, batch.ok, len(batch)) == (20, 0, True, 20)
        assert {item.result.stdout for item in batch if item.result} == {b"7\n"}
        assert {item.result.stderr for item in batch if item.result} == {b"e\n"}
        assert len({item.id for item in batch}) == 20
        assert len(server.state.sandboxes) == 20
    assert server.state.sandboxes == {}
    assert [path for method, path in server.state.requests if method == "POST"] == [
        "/api/v1/sandboxes",
        "/api/v1/sandboxes/remove",
    ]


def test_items_that_could_not_be_made_carry_their_error(client: Client) -> None:
    batch = client.sandboxes.create(3, env={"BREAK": "1"})
    assert (batch.created, batch.failed, batch.ok) == (0, 3, False)
    assert str(batch[0].error) == "No node has room.\nkernpool node ls"
    with pytest.raises(ApiError, match="No node has room"):
        client.sandboxes.create_one(env={"BREAK": "1"})


def test_a_bulk_answer_that_is_cut_is_asked_for_again_and_makes_nothing_twice(
    client: Client, server: ContractServer
) -> None:
    """The network breaks after half of 240 results."""
    server.state.cuts["/api/v1/sandboxes"] = 1
    batch = client.sandboxes.create(10, command=["true"])
    assert len({item.id for item in batch}) == len(batch) == 10
    assert len(server.state.sandboxes) == 10


def test_a_bulk_answer_that_is_always_cut_tells_what_came(client: Client, server: ContractServer) -> None:
    server.state.cuts["/api/v1/sandboxes"] = 100
    with pytest.raises(CutError) as caught:
        client.sandboxes.create(10)
    assert len(caught.value.items) == 5
    assert "kernpool sandbox ls" in caught.value.hint


@pytest.mark.parametrize(
    "options", [{"ttl": "ten minutes"}, {"memory": "lots"}, {"image": "none/such"}], ids=["ttl", "memory", "image"]
)
def test_options_that_make_no_sense_create_nothing(
    client: Client, server: ContractServer, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidError):
        client.sandboxes.create(2, **options)
    assert server.state.sandboxes == {}


def test_a_kept_sandbox_runs_commands(client: Client) -> None:
    with client.sandboxes.create_one(env={"A": "1"}, labels={"team": "x"}) as sandbox:
        done = sandbox.exec(["sh", "-c", "cat; echo $A$B; echo oops >&2; exit 4"], env={"B": "2"}, stdin=b"in\n")
        assert (done.exit_code, done.stdout, done.stderr) == (4, b"in\n12\n", b"oops\n")
        assert sandbox.exec("echo one text | tr a-z A-Z").stdout_text == "ONE TEXT\n"
        with pytest.raises(CommandFailedError, match="exited with 4: no") as caught:
            sandbox.exec("echo no >&2; exit 4", check=True)
        assert caught.value.result.stderr == b"no\n"
        assert [found.id for found in client.sandboxes.ls(labels={"team": "x"})] == [sandbox.id]
        assert list(client.sandboxes.ls(labels={"team": "y"})) == []
        assert sandbox.extend("1h").expires_unix_s > sandbox.refresh().created_unix_s + 3000
    with pytest.raises(NotFoundError):
        sandbox.exec(["true"])


def test_output_beyond_the_bound_is_counted_not_kept(client: Client) -> None:
    with client.sandboxes.create_one() as sandbox:
        done = sandbox.exec("head -c 3000000 /dev/zero", output_bytes_max=1000)
        assert (len(done.stdout), done.stdout_bytes_dropped) == (1000, 2999000)


def test_a_command_whose_answer_is_cut_is_not_run_again(client: Client, server: ContractServer) -> None:
    """A command may have sent mail: nobody knows, so nobody repeats it."""
    with client.sandboxes.create_one() as sandbox:
        server.state.cuts[f"/api/v1/sandboxes/{sandbox.id}/exec"] = 1
        with pytest.raises(CutError, match="broke"):
            sandbox.exec("echo x >> ran")
        assert sandbox.files.read("ran") == b"x\n"


def test_output_comes_while_the_command_runs(client: Client) -> None:
    with client.sandboxes.create_one() as sandbox:
        events = list(sandbox.stream(["sh", "-c", "echo a; echo b >&2"]))
        assert isinstance(events[-1], Exit)
        chunks = {event.stream: event.data for event in events if isinstance(event, Chunk)}
        assert chunks == {"stdout": b"a\n", "stderr": b"b\n"}


def test_a_started_command_takes_input_and_signals(client: Client) -> None:
    with client.sandboxes.create_one() as sandbox:
        with sandbox.start(["cat"]) as process:
            process.write(b"hello ")
            assert next(iter(process)) == Chunk("stdout", b"hello ")
            process.write(b"you")
            process.close_stdin()
            assert b"".join(chunk.data for chunk in process) == b"you"
            assert process.wait(5).exit_code == 0
        with sandbox.start(["sleep", "60"]) as process:
            with pytest.raises(TimeoutError):
                process.wait(0.05)
            process.signal(signal.SIGTERM)
            assert process.wait(5).exit_code == 143


def test_much_input_and_output_at_once_does_not_lock_up(client: Client) -> None:
    """`cat` stops reading when nobody takes its output: a writer that only writes would wait for ever."""
    data = bytes(range(256)) * 40_000  # 10 MB
    with client.sandboxes.create_one() as sandbox, sandbox.start(["cat"]) as process:
        process.write(data)
        process.close_stdin()
        assert b"".join(chunk.data for chunk in process) == data


def test_one_thread_writes_while_another_reads(client: Client) -> None:
    data = b"0123456789abcdef" * 200_000
    with client.sandboxes.create_one() as sandbox, sandbox.start(["cat"]) as process:

        def write() -> None:
            for start in range(0, len(data), 50_000):
                process.write(data[start : start + 50_000])
            process.close_stdin()

        writer = threading.Thread(target=write)
        writer.start()
        assert b"".join(chunk.data for chunk in process) == data
        writer.join(10)


def test_files_go_in_and_out(client: Client) -> None:
    with client.sandboxes.create_one() as sandbox:
        files = sandbox.files
        files.write("/a.bin", b"\0\1\2" * 100_000, mode=0o600)
        assert files.read("/a.bin") == b"\0\1\2" * 100_000
        assert files.read("/a.bin", offset=1, limit=2) == b"\1\2"
        found = files.stat("/a.bin")
        assert (found.type, found.size, found.mode) == ("file", 300_000, 0o600)
        files.write("/pieces", iter([b"one ", b"", b"two"]))
        files.write("/text", "héllo")
        assert files.read("/pieces") == b"one two"
        assert files.read("/text") == "héllo".encode()
        files.mkdir("/d/e")
        files.move("/text", "/d/e/moved & spaced?")
        assert [entry.name for entry in files.list("/d/e")] == ["moved & spaced?"]
        assert files.exists("/d/e")
        files.remove("/d")
        assert not files.exists("/d")
        with pytest.raises(NotFoundError, match="no file /nothing"):
            files.read("/nothing")
        with pytest.raises(NotFoundError, match="no directory /no"):
            files.write("/no/where", iter([b"x" * 70_000] * 50))


def test_a_port_inside_is_reached(client: Client) -> None:
    class Echo(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(self.rfile.read().upper())

    with socketserver.TCPServer(("127.0.0.1", 0), Echo) as echo, client.sandboxes.create_one() as sandbox:
        thread = threading.Thread(target=echo.handle_request)
        thread.start()
        with sandbox.connect(echo.server_address[1]) as connection:
            connection.send(b"hello " * 50_000)
            connection.close_write()
            pieces = iter(lambda: connection.receive(10), b"")
            assert b"".join(pieces) == b"HELLO " * 50_000
        thread.join(10)
        with pytest.raises(ApiError, match="Nothing listens on port 1"):
            sandbox.connect(1)


def test_pools_are_set_and_read(client: Client) -> None:
    wanted = Pool(Template(image="host"), parked=50, drain_after_s=60.0)
    assert client.sandboxes.set_pools([wanted]) == (wanted,)
    assert client.sandboxes.pools() == (wanted,)


def test_many_threads_share_one_client(client: Client) -> None:
    """An RL trainer calls exec from a thread pool."""
    with client.sandboxes.create_one() as sandbox:
        results: list[bytes] = []

        def work(number: int) -> None:
            results.extend(sandbox.exec(["echo", str(number)]).stdout for _ in range(5))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert sorted(results) == sorted(b"%d\n" % number for number in range(8) for _ in range(5))
