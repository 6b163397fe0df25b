"""The asyncio SDK against a server that really runs things: the same stories as its synchronous twin."""

import asyncio
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from contract_server import ContractServer

from kernpool import ApiError, CommandFailedError, CutError, InvalidError, NotFoundError, UnreachableError
from kernpool.aio import Client
from kernpool.protocol.execution import Chunk


@pytest_asyncio.fixture
async def aclient(server: ContractServer) -> AsyncIterator[Client]:
    async with Client(server.url, "kpt_test") as made:
        yield made


async def test_a_job_runs_and_tells_its_log_and_exit_code(aclient: Client) -> None:
    job = await aclient.launch({"run": "echo out; exit 3"})
    assert b"".join([piece async for piece in job.logs()]) == b"out\n"
    end = await job.wait(10)
    assert (end.state, end.exit_code) == ("failed", 3)
    assert [found.id async for found in aclient.jobs()] == ["j-1"]
    with pytest.raises(InvalidError):
        await aclient.launch({"runn": ""})


async def test_a_wait_that_is_too_long_raises_and_the_job_goes_on(aclient: Client) -> None:
    job = await aclient.launch({"run": "sleep 60"})
    with pytest.raises(TimeoutError):
        await job.wait(0.05)
    assert (await job.cancel()).state == "cancelled"


async def test_a_cut_log_goes_on_where_it_was(aclient: Client, server: ContractServer) -> None:
    server.state.cuts["/api/v1/jobs/j-1/logs"] = 3
    job = await aclient.launch({"run": "for i in $(seq 2000); do echo line $i; done"})
    await job.wait(10)
    expected = b"".join(b"line %d\n" % number for number in range(1, 2001))
    assert b"".join([piece async for piece in job.logs()]) == expected
    assert server.state.cuts["/api/v1/jobs/j-1/logs"] == 0


async def test_a_bulk_create_gives_a_result_each_and_leaves_nothing(aclient: Client, server: ContractServer) -> None:
    server.state.cuts["/api/v1/sandboxes"] = 1
    async with await aclient.sandboxes.create(20, command=["echo", "hi"]) as batch:
        assert (batch.created, batch.failed, batch.ok) == (20, 0, True)
        assert {item.result.stdout for item in batch if item.result} == {b"hi\n"}
    assert server.state.sandboxes == {}


async def test_many_commands_run_at_once_over_one_client(aclient: Client) -> None:
    async with await aclient.sandboxes.create_one() as sandbox:
        results = await asyncio.gather(*(sandbox.exec(["echo", str(number)]) for number in range(40)))
        assert [result.stdout for result in results] == [b"%d\n" % number for number in range(40)]
        with pytest.raises(CommandFailedError):
            await sandbox.exec("exit 9", check=True)
    with pytest.raises(NotFoundError):
        await sandbox.exec(["true"])


async def test_a_command_whose_answer_is_cut_is_not_run_again(aclient: Client, server: ContractServer) -> None:
    async with await aclient.sandboxes.create_one() as sandbox:
        server.state.cuts[f"/api/v1/sandboxes/{sandbox.id}/exec"] = 1
        with pytest.raises(CutError):
            await sandbox.exec("echo x >> ran")
        assert await sandbox.files.read("ran") == b"x\n"


async def test_a_started_command_takes_input_and_signals(aclient: Client) -> None:
    async with await aclient.sandboxes.create_one() as sandbox:
        async with await sandbox.start(["cat"]) as process:
            await process.write(b"hello ")
            async for chunk in process:
                assert chunk == Chunk("stdout", b"hello ")
                break
            await process.write(b"you")
            await process.close_stdin()
            assert b"".join([chunk.data async for chunk in process]) == b"you"
            assert (await process.wait(5)).exit_code == 0
        async with await sandbox.start(["sleep", "60"]) as process:
            with pytest.raises(TimeoutError):
                await process.wait(0.05)
            await process.signal(signal.SIGTERM)
            assert (await process.wait(5)).exit_code == 143


async def test_files_go_in_and_out(aclient: Client) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 100_000

    async with await aclient.sandboxes.create_one() as sandbox:
        await sandbox.files.write("/big", pieces(), mode=0o600)
        assert await sandbox.files.read("/big") == b"x" * 300_000
        assert (await sandbox.files.stat("/big")).mode == 0o600
        await sandbox.files.mkdir("/d")
        await sandbox.files.move("/big", "/d/b & c")
        assert [entry.name for entry in await sandbox.files.list("/d")] == ["b & c"]
        await sandbox.files.remove("/d")
        assert not await sandbox.files.exists("/d")


async def test_a_port_inside_is_reached(aclient: Client) -> None:
    async def upper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read()).upper())
        writer.close()

    echo = await asyncio.start_server(upper, "127.0.0.1", 0)
    async with echo, await aclient.sandboxes.create_one() as sandbox:
        async with await sandbox.connect(echo.sockets[0].getsockname()[1]) as connection:
            await connection.send(b"hello" * 1000)
            await connection.close_write()
            received = b""
            while piece := await connection.receive():
                received += piece
            assert received == b"HELLO" * 1000
        with pytest.raises(ApiError, match="Nothing listens on port 1"):
            await sandbox.connect(1)


async def test_events_are_given_past_and_to_come(aclient: Client) -> None:
    for _ in range(3):
        await aclient.launch({"run": "true"})
    assert [event.id async for event in aclient.events()] == [1, 2, 3]
    follower = aclient.events(after=2, follow=True)
    assert (await anext(follower)).id == 3
    await aclient.launch({"run": "true"})
    assert (await anext(follower)).object == "job/j-4"
    await follower.aclose()  # type: ignore[attr-defined]


async def test_an_unreachable_coordinator_is_told_as_such() -> None:
    async with Client("http://127.0.0.1:1", "t") as nowhere:
        with pytest.raises(UnreachableError, match=r"Cannot reach the coordinator at http://127.0.0.1:1: Connec"):
            await nowhere.info()
