"""Commands in a live sandbox, streamed, through both doors."""

import asyncio
import base64
import contextlib
import io
import json
import signal
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import pytest_asyncio

if TYPE_CHECKING:
    from tests.agent.dataplane.conftest import Door, Node

pytestmark = pytest.mark.asyncio(loop_scope="package")


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def sandbox(node: "Node") -> str:
    return await node.sandbox()


class Answer:
    """An NDJSON answer, taken apart."""

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        self.out = b"".join(base64.b64decode(line["data_b64"]) for line in lines if line.get("stream") == "stdout")
        self.err = b"".join(base64.b64decode(line["data_b64"]) for line in lines if line.get("stream") == "stderr")
        assert [set(line) for line in lines if "exit" in line] == [{"exit"}]
        self.end: dict[str, Any] = lines[-1]["exit"]

    @property
    def reason(self) -> tuple[str, int]:
        return self.end["reason"], self.end["exit_code"]


async def run(door: "Door", sandbox_id: str, *argv: str, **body: Any) -> Answer:
    async with door.request(
        "POST", f"/v1/sandboxes/{sandbox_id}/exec", f"sandbox/{sandbox_id}", ["exec"], json={"argv": argv, **body}
    ) as response:
        assert (response.status, response.content_type) == (200, "application/x-ndjson")
        return Answer([json.loads(line) async for line in response.content])


async def shell(door: "Door", sandbox_id: str, text: str, **body: Any) -> Answer:
    return await run(door, sandbox_id, "sh", "-c", text, **body)


async def test_output_streams_and_exit_code_come_apart(door: "Door", sandbox: str) -> None:
    """The everyday exec."""
    answer = await shell(door, sandbox, "echo out; echo err >&2; exit 3")
    assert (answer.out, answer.err, answer.reason) == (b"out\n", b"err\n", ("exited", 3))
    assert 0 < answer.end["first_output_ms"] < 10_000


async def test_a_command_without_output_is_only_its_end(door: "Door", sandbox: str) -> None:
    """`true`, the smallest of them."""
    answer = await run(door, sandbox, "true")
    assert (answer.out, answer.err, answer.reason) == (b"", b"", ("exited", 0))


async def test_stdin_env_cwd_and_user_reach_the_command(door: "Door", sandbox: str, node: "Node") -> None:
    """What a tool call of an assistant sets."""
    answer = await shell(
        door,
        sandbox,
        "cat; echo $GREETING; pwd; id -u",
        stdin_b64=base64.b64encode(b"in\0\xff").decode(),
        env={"GREETING": "hällo"},
        cwd="/tmp",
        user=node.second_user,
    )
    assert answer.out == b"in\0\xff" + f"hällo\n/tmp\n{node.second_user}\n".encode()


async def test_bytes_are_passed_untouched_whatever_they_are(door: "Door", sandbox: str) -> None:
    """Output is no text: half characters, NULs and every other byte come through."""
    answer = await run(door, sandbox, "printf", "\\000\\377\\303")
    assert answer.out == b"\0\xff\xc3"
    everything = bytes(range(256)) * 1000
    answer = await run(door, sandbox, "cat", stdin_b64=base64.b64encode(everything).decode())
    assert answer.out == everything


async def test_raw_bytes_in_arguments_arrive_as_they_are(door: "Door", sandbox: str) -> None:
    """A file name that is no UTF-8."""
    answer = await run(door, sandbox, "printf", "%s", "caf\udce9")
    assert answer.out == b"caf\xe9"


@pytest.mark.parametrize(
    ("argv", "code"),
    [(["no-such-command"], 127), (["/etc/passwd"], 126), (["/"], 126), (["/no/such"], 127)],
)
async def test_a_command_that_cannot_start_ends_with_a_shells_exit_code(
    door: "Door", sandbox: str, argv: list[str], code: int
) -> None:
    """A typing mistake is the command's end, no error of the API."""
    answer = await run(door, sandbox, *argv)
    assert answer.reason == ("start_failed", code)
    assert argv[0] in answer.end["detail"]


async def test_a_timeout_kills_every_descendant(door: "Door", sandbox: str) -> None:
    """A command hangs, with children in other sessions."""
    answer = await shell(door, sandbox, "setsid sleep 4321 & sleep 4321", timeout_s=0.2)
    assert answer.reason == ("timeout", 137)
    assert await living(door, sandbox, "sleep 4321") == 0


async def living(door: "Door", sandbox_id: str, marker: str) -> int:
    """Counts the sandbox's processes that have this in their arguments."""
    script = f"for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$f 2>/dev/null; echo; done | grep -c '^{marker}' || true"
    return int((await shell(door, sandbox_id, script)).out)


async def until_gone(door: "Door", sandbox_id: str, marker: str) -> None:
    async with asyncio.timeout(20):
        while await living(door, sandbox_id, marker):
            pass


async def test_output_arrives_while_the_command_runs(door: "Door", sandbox: str) -> None:
    """A person watches: the first line must not wait for the last."""
    async with door.request(
        "POST",
        f"/v1/sandboxes/{sandbox}/exec",
        f"sandbox/{sandbox}",
        ["exec"],
        json={"argv": ["sh", "-c", "echo first; sleep 4322"]},
    ) as response:
        line = await asyncio.wait_for(response.content.readline(), 10)
        assert base64.b64decode(json.loads(line)["data_b64"]) == b"first\n"
        response.close()
    await until_gone(door, sandbox, "sleep 4322")


async def test_a_client_that_leaves_takes_its_command_along(door: "Door", sandbox: str) -> None:
    """Ctrl-C, a closed laptop, a crashed client: no process of the command stays, wherever the stream stood."""
    for text in ("sleep 4323", "trap '' TERM INT HUP; (setsid sleep 4323 &) ; yes"):
        async with door.request(
            "POST",
            f"/v1/sandboxes/{sandbox}/exec",
            f"sandbox/{sandbox}",
            ["exec"],
            json={"argv": ["sh", "-c", f"echo up; {text}"]},
        ) as response:
            await response.content.readline()
            response.close()
        await until_gone(door, sandbox, "sleep 4323")
        assert await living(door, sandbox, "yes") == 0


async def test_a_client_that_leaves_before_the_start_leaves_nothing_either(door: "Door", sandbox: str) -> None:
    """The request is cancelled at every moment of its start."""
    url = f"/v1/sandboxes/{sandbox}/exec"

    async def one() -> None:
        async with door.request("POST", url, f"sandbox/{sandbox}", ["exec"], json={"argv": ["sleep", "4324"]}) as r:
            await r.read()

    for turns in range(30):
        task = asyncio.ensure_future(one())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await until_gone(door, sandbox, "sleep 4324")


async def test_much_output_flows_with_back_pressure(door: "Door", sandbox: str) -> None:
    """64 MiB to a client that reads in bursts: all of it comes, none of it piles up."""
    total = 64 << 20
    got = 0
    async with door.request(
        "POST",
        f"/v1/sandboxes/{sandbox}/exec",
        f"sandbox/{sandbox}",
        ["exec"],
        json={"argv": ["head", "-c", str(total), "/dev/zero"]},
    ) as response:
        buffer = b""
        async for chunk in response.content.iter_chunked(1 << 16):
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                body = json.loads(line)
                got += len(base64.b64decode(body["data_b64"])) if "data_b64" in body else 0
                last = body
    assert got == total
    assert last["exit"]["exit_code"] == 0


async def test_a_client_that_reads_nothing_stops_the_command_not_the_node(door: "Door", sandbox: str) -> None:
    """`exec yes | less`: the command waits, others are served, memory stays."""
    async with door.request(
        "POST", f"/v1/sandboxes/{sandbox}/exec", f"sandbox/{sandbox}", ["exec"], json={"argv": ["yes", "4325"]}
    ) as response:
        await response.content.readline()
        answer = await run(door, sandbox, "echo", "served")
        assert answer.out == b"served\n"
        response.close()
    await until_gone(door, sandbox, "yes 4325")


async def test_two_hundred_execs_at_once_all_answer(door: "Door", sandbox: str) -> None:
    """A benchmark harness opens them all together."""
    answers = await asyncio.gather(*(run(door, sandbox, "echo", str(n)) for n in range(200)))
    assert [answer.out for answer in answers] == [b"%d\n" % n for n in range(200)]
    assert {answer.reason for answer in answers} == {("exited", 0)}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "not JSON"),
        (b'{"argv": []}', "argv: expected"),
        (b'{"argv": ["true"], "cmd": 1}', "unknown key 'cmd'"),
    ],
)
async def test_a_bad_body_is_a_problem(door: "Door", sandbox: str, body: bytes, told: str) -> None:
    """What was wrong, by name."""
    async with door.request(
        "POST", f"/v1/sandboxes/{sandbox}/exec", f"sandbox/{sandbox}", ["exec"], data=body
    ) as response:
        assert response.status == 400
        assert told in (await response.json(content_type=None))["message"]


async def test_a_body_that_is_too_large_is_refused(door: "Door", sandbox: str) -> None:
    """17 MiB of stdin in one JSON body."""
    body = io.BytesIO(b'{"argv": ["cat"], "stdin_b64": "' + b"A" * (17 << 20) + b'"}')
    with contextlib.suppress(aiohttp.ClientConnectionError):  # the refusal meets a client that is still sending
        async with door.request(
            "POST", f"/v1/sandboxes/{sandbox}/exec", f"sandbox/{sandbox}", ["exec"], data=body
        ) as response:
            assert response.status == 413
    assert (await run(door, sandbox, "true")).reason == ("exited", 0)


async def test_the_end_of_the_sandbox_ends_its_commands_with_a_reason(door: "Door", node: "Node") -> None:
    """`sandbox rm` while somebody runs a command in it."""
    sandbox_id = await node.sandbox()
    async with door.request(
        "POST",
        f"/v1/sandboxes/{sandbox_id}/exec",
        f"sandbox/{sandbox_id}",
        ["exec"],
        json={"argv": ["sh", "-c", "echo up; sleep 4326"]},
    ) as response:
        await response.content.readline()
        await node.runtime.remove([sandbox_id])
        answer = Answer([json.loads(line) async for line in response.content])
        assert answer.reason == ("cancelled", 137)
    async with door.request(
        "POST", f"/v1/sandboxes/{sandbox_id}/exec", f"sandbox/{sandbox_id}", ["exec"], json={"argv": ["true"]}
    ) as response:
        assert response.status == 410
        assert (await response.json(content_type=None))["code"] == "ended"


# --- the WebSocket form ---


class Talk:
    """A WebSocket exec, driven by frames."""

    def __init__(self, websocket: aiohttp.ClientWebSocketResponse) -> None:
        self.websocket = websocket
        self.out = b""
        self.err = b""

    async def send(self, data: bytes) -> None:
        await self.websocket.send_bytes(b"\0" + data)

    async def signal(self, number: int) -> None:
        await self.websocket.send_str(json.dumps({"signal": number}))

    async def until(self, text: bytes) -> None:
        async with asyncio.timeout(20):
            while text not in self.out:
                self.take(await self.websocket.receive())

    def take(self, message: aiohttp.WSMessage) -> None:
        assert message.type is aiohttp.WSMsgType.BINARY, message
        match message.data[0]:
            case 1:
                self.out += message.data[1:]
            case 2:
                self.err += message.data[1:]
            case channel:
                pytest.fail(f"channel {channel}")

    async def end(self) -> dict[str, Any]:
        """Takes frames until the last text frame and returns it."""
        async with asyncio.timeout(30):
            while (message := await self.websocket.receive()).type is aiohttp.WSMsgType.BINARY:
                self.take(message)
            assert message.type is aiohttp.WSMsgType.TEXT, message
            body: dict[str, Any] = json.loads(message.data)
            assert (await self.websocket.receive()).type is aiohttp.WSMsgType.CLOSE
        return body


def talk(door: "Door", sandbox_id: str) -> Any:
    return door.websocket(f"/v1/sandboxes/{sandbox_id}/exec", f"sandbox/{sandbox_id}", ["exec"], autoclose=False)


async def test_a_live_conversation_with_stdin(door: "Door", sandbox: str) -> None:
    """A REPL: each line is answered before the next is sent."""
    async with talk(door, sandbox) as websocket:
        talking = Talk(websocket)
        await websocket.send_str(json.dumps({"argv": ["sh", "-c", "while read l; do echo got $l; done; echo bye >&2"]}))
        for n in range(5):
            await talking.send(b"line %d\n" % n)
            await talking.until(b"got line %d\n" % n)
        await talking.send(b"")
        end = await talking.end()
    assert (talking.err, end["exit"]["reason"], end["exit"]["exit_code"]) == (b"bye\n", "exited", 0)


async def test_bulk_stdin_and_stdout_at_the_same_time(door: "Door", sandbox: str) -> None:
    """`tar x` through a pipe: 16 MiB each way, without a deadlock."""
    chunk = bytes(range(256)) * 256
    async with talk(door, sandbox) as websocket:
        talking = Talk(websocket)
        await websocket.send_str(json.dumps({"argv": ["cat"]}))

        async def feed() -> None:
            for _ in range(256):
                await talking.send(chunk)
            await talking.send(b"")

        feeding = asyncio.ensure_future(feed())
        end = await talking.end()
        await feeding
    assert end["exit"]["exit_code"] == 0
    assert talking.out == chunk * 256


async def test_a_signal_reaches_the_command(door: "Door", sandbox: str) -> None:
    """Ctrl-C in a terminal: the program handles it itself."""
    async with talk(door, sandbox) as websocket:
        talking = Talk(websocket)
        script = "trap 'echo caught; exit 5' INT; echo up; while :; do sleep 0.05; done"
        await websocket.send_str(json.dumps({"argv": ["sh", "-c", script]}))
        await talking.until(b"up\n")
        await talking.signal(signal.SIGINT)
        end = await talking.end()
    assert talking.out.endswith(b"caught\n")
    assert end["exit"]["exit_code"] == 5


async def test_a_command_that_never_reads_stdin_stops_the_client_not_the_node(door: "Door", sandbox: str) -> None:
    """`yes | kernpool exec sleep`: frames pile up to a bound, the end of the command ends it all."""
    async with talk(door, sandbox) as websocket:
        talking = Talk(websocket)
        await websocket.send_str(json.dumps({"argv": ["sh", "-c", "echo up; sleep 0.5"]}))
        await talking.until(b"up\n")

        async def feed() -> None:
            while True:
                await talking.send(b"x" * 65536)

        feeding = asyncio.ensure_future(feed())
        end = await talking.end()
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
    assert end["exit"]["exit_code"] == 0


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_a_client_that_hangs_up_takes_its_command_along_here_too(door: "Door", sandbox: str, how: str) -> None:
    """With or without a goodbye."""
    async with talk(door, sandbox) as websocket:
        talking = Talk(websocket)
        await websocket.send_str(json.dumps({"argv": ["sh", "-c", "trap '' TERM HUP INT; echo up; exec sleep 4327"]}))
        await talking.until(b"up\n")
        if how == "close":
            await websocket.close()
        else:
            websocket._response.connection.transport.abort()
    await until_gone(door, sandbox, "sleep 4327")


@pytest.mark.parametrize(
    ("frames", "told"),
    [
        (["{}"], "'argv' is missing"),
        (["no json"], "not JSON"),
        ([b"\0binary first"], "expected a text frame"),
        (['{"argv": ["sleep", "4328"]}', b"\1wrong channel"], "channel byte 00"),
        (['{"argv": ["sleep", "4328"]}', b""], "channel byte 00"),
        (['{"argv": ["sleep", "4328"]}', '{"signal": 99}'], '{"signal": 1 to'),
        (['{"argv": ["sleep", "4328"]}', '{"resize": [1, 2]}'], '{"signal": 1 to'),
    ],
)
async def test_a_bad_frame_is_told_and_ends_the_command(
    door: "Door", sandbox: str, frames: list[str | bytes], told: str
) -> None:
    """A client with a bug."""
    async with talk(door, sandbox) as websocket:
        for frame in frames:
            await (websocket.send_str(frame) if isinstance(frame, str) else websocket.send_bytes(frame))
        end = await Talk(websocket).end()
    assert end["error"]["code"] == "invalid"
    assert told in end["error"]["message"]
    await until_gone(door, sandbox, "sleep 4328")


async def test_a_frame_beyond_the_bound_ends_the_conversation(door: "Door", sandbox: str) -> None:
    """2 MiB in one frame."""
    async with talk(door, sandbox) as websocket:
        await websocket.send_str('{"argv": ["sleep", "4329"]}')
        with contextlib.suppress(ConnectionError):
            await websocket.send_bytes(b"\0" * (2 << 20))
        message = await asyncio.wait_for(websocket.receive(), 10)
        while message.type is aiohttp.WSMsgType.TEXT:
            message = await asyncio.wait_for(websocket.receive(), 10)
        assert message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
    await until_gone(door, sandbox, "sleep 4329")


async def test_a_command_that_cannot_start_ends_the_conversation_with_its_code(door: "Door", sandbox: str) -> None:
    """The same words as in the streamed form."""
    async with talk(door, sandbox) as websocket:
        await websocket.send_str('{"argv": ["no-such-command"]}')
        end = await Talk(websocket).end()
    assert (end["exit"]["reason"], end["exit"]["exit_code"]) == ("start_failed", 127)
