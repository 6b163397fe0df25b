"""Malformed, cut and senseless messages on the real sockets, of the ordinary and of a sanitizer build."""

import array
import asyncio
import os
import random
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kernpool_sandbox.kpinit import binary
from kernpool_sandbox.kpinit.encoding import encode_exec, encode_file, encode_sandbox
from kernpool_sandbox.kpinit.init import InitClient
from kernpool_sandbox.kpinit.plan import ExecSpec, FileOp, FileSpec
from kernpool_sandbox.kpinit.wire import FRAME_BYTES_MAX, Op, Tag, encode, put_bytes, put_str, put_u32, put_u64

HELLO = encode(Op.HELLO, 1, 1, 1)


def dial(path: str | Path, *, hello: bool = True) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(10)
    sock.connect(str(path))
    if hello:
        sock.send(HELLO)
        assert sock.recv(20000)
    return sock


def closed(sock: socket.socket) -> bool:
    """Read what still comes; say whether the other side closes."""
    try:
        while sock.recv(20000):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def flood(sock: socket.socket) -> int:
    """Send requests without reading answers until the other side has enough; return how many went out."""
    for number in range(100_000):
        try:
            sock.send(encode(Op.PING, 5))
        except ConnectionError:
            return number
    return 100_000


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build kp-init so that undefined behaviour traps; it stays a static program and so can be PID 1 anywhere."""
    target = tmp_path_factory.mktemp("ubsan") / "kp-init"
    flags = ("-g", "-fsanitize=undefined,bounds-strict", "-fsanitize-undefined-trap-on-error", "-ftrapv")
    binary.build(target, cflags=(*binary.CFLAGS, *flags, "-D_FORTIFY_SOURCE=2"), ldflags=("-static",))
    return target


@pytest.fixture(params=["ordinary", "sanitized"])
async def any_node(request: pytest.FixtureRequest, make_node: Any, kp_init: Path) -> AsyncIterator[Any]:
    """A node with the shipped program and one with the sanitizer build."""
    program = kp_init if request.param == "ordinary" else request.getfixturevalue("sanitized")
    async with make_node(program) as node:
        yield node


BROKEN = {
    "no header": b"\x02",
    "half a value": encode(Op.PING, 5, body=b"\x01\0\0\0"),
    "a value past the end": encode(Op.PING, 5, body=b"\x01\0\0\0\xff\xff\xff\xff"),
    "a string without its NUL": encode(Op.EXEC, 5, 1, body=put_bytes(Tag.ARG, b"sh")),
    "a string with two": encode(Op.EXEC, 5, 1, body=put_bytes(Tag.ARG, b"s\0h\0")),
    "a short number": encode(Op.CLAIM, 5, body=put_bytes(Tag.TTL_MS, b"\1")),
    "over the limit": encode(Op.PING, 5, body=put_bytes(Tag.DETAIL, b"x" * FRAME_BYTES_MAX)),
}


@pytest.mark.parametrize("what", BROKEN)
async def test_a_malformed_message_closes_the_connection_and_nothing_else(any_node: Any, what: str) -> None:
    """A bug in an agent costs that agent its connection, not the sandbox and not the spawner."""
    box = await any_node.park()
    for path in (box.spawned.socket_path, any_node.config.socket_path):
        sock = dial(path)
        sock.send(BROKEN[what])
        assert closed(sock)
        sock.close()
    await any_node.client.ping()
    box.client = await InitClient.attach(box.spawned.socket_path)
    await box.client.ping()


async def test_requests_before_hello_are_refused(any_node: Any) -> None:
    """Nobody commands who has not said which protocol it speaks."""
    box = await any_node.park()
    for path in (box.spawned.socket_path, any_node.config.socket_path):
        sock = dial(path, hello=False)
        sock.send(encode(Op.PING, 1))
        assert closed(sock)
        sock.close()
    await box.client.ping()


async def test_an_unknown_protocol_is_told_and_an_old_agent_keeps_its_place(any_node: Any) -> None:
    """An agent from the future must hear that it is one."""
    box = await any_node.park()
    sock = dial(box.spawned.socket_path, hello=False)
    sock.send(encode(Op.HELLO, 1, 90, 99))
    assert int.from_bytes(sock.recv(1000)[8:12], "little", signed=True) == -93  # EPROTONOSUPPORT
    assert closed(sock)
    sock.close()
    await box.client.ping()


async def test_unknown_tags_and_requests_are_answered_not_fatal(any_node: Any) -> None:
    """A newer agent may send more than an older kp-init knows."""
    box = await any_node.park()
    channel = box.client._channel
    await channel.call(Op.PING, body=put_bytes(Tag(1), b"x\0") + b"\xe7\x03\0\0\x02\0\0\0hi")
    with pytest.raises(OSError, match="not implemented"):
        await channel.call(Op.DEFINE)
    with pytest.raises(OSError, match="not implemented"):
        await any_node.client._channel.call(Op.CLAIM)


async def test_descriptors_that_nobody_asked_for_are_closed(any_node: Any) -> None:
    """Sending descriptors with every message must not fill PID 1's table."""
    box = await any_node.park()
    reading, writing = os.pipe()
    for path in (box.spawned.socket_path, any_node.config.socket_path):
        sock = dial(path)
        for _ in range(300):
            control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [writing] * 64))]
            sock.sendmsg([encode(Op.PING, 5)], control)
            assert sock.recv(1000)
        too_many = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [writing] * 65))]
        sock.sendmsg([encode(Op.PING, 6)], too_many)
        assert closed(sock)
        sock.close()
    os.close(writing)
    assert os.read(reading, 1) == b""
    os.close(reading)


async def test_an_agent_that_reads_no_answers_is_dropped(any_node: Any) -> None:
    """A stuck agent must not make PID 1 wait or keep what it cannot deliver."""
    box = await any_node.park()
    sock = dial(box.spawned.socket_path)
    assert flood(sock) < 100_000
    sock.close()
    box.client = await InitClient.attach(box.spawned.socket_path)
    await box.client.ping()


def requests() -> list[bytes]:
    """Well-formed requests whose numbers and bytes are then spoiled."""
    exec_body = encode_exec(ExecSpec(1, ("true",), {"A": "b"}, "/", "", 0.5, stdin=True))
    file_body = encode_file(FileSpec(FileOp.STAT, "/tmp", deadline_s=0.1))
    claim = put_str(Tag.TOKEN, "t") + put_u64(Tag.TTL_MS, 60_000)
    return [
        encode(Op.EXEC, 7, 1, body=exec_body),
        encode(Op.FILE, 7, FileOp.MKDIR, body=file_body),
        encode(Op.CLAIM, 7, body=claim),
        encode(Op.SIGNAL, 7, 1, 9, put_u32(Tag.FLAGS, 1)),
        encode(Op.ACK, 7, 1),
        encode(Op.REATTACH, 7, 1),
        encode(Op.CONNECT, 7, 80, body=put_str(Tag.PATH, "127.0.0.1")),
        encode(Op.LIST, 7),
        encode(Op.DEFINE, 7, body=put_str(Tag.TEMPLATE, "t")),
        encode(Op.KILL, 7, body=put_str(Tag.ID, "nobody")),
    ]


def spoil(rng: random.Random, packet: bytes) -> bytes:
    data = bytearray(packet)
    for _ in range(rng.randrange(4)):
        position = rng.randrange(4, len(data))  # the request's kind stays: others have tests of their own
        data[position] = rng.choice((0, 1, 255, rng.randrange(256)))
    if rng.random() < 0.2:
        del data[rng.randrange(4, len(data)) :]
    return bytes(data)


async def test_random_messages_leave_sandbox_and_spawner_at_work(any_node: Any) -> None:
    """Two thousand spoiled requests, always the same ones; afterwards everything still answers."""
    rng = random.Random(4711)
    box = await any_node.park()
    spawn = encode(Op.SPAWN, 7, body=encode_sandbox("x/y", any_node.plan(), ""))
    for path, packets in ((box.spawned.socket_path, requests()), (any_node.config.socket_path, [*requests(), spawn])):
        sock = dial(path)
        for _ in range(1000):
            try:
                sock.send(spoil(rng, rng.choice(packets)))
                sock.setblocking(False)
                sock.recv(20000)
            except BlockingIOError:
                await asyncio.sleep(0)
            except OSError:
                sock.close()
                sock = dial(path)
            sock.settimeout(10)
        sock.close()
    await any_node.client.ping()
    assert box.id in [child.id for child in await any_node.client.list()]
    box.client = await InitClient.attach(box.spawned.socket_path)
    await box.client.ping()


def test_the_program_explains_its_flags(kp_init: Path, tmp_path: Path) -> None:
    """A wrong flag is an error with its name, before anything is made."""
    for flags in (
        [],
        ["spawner"],
        ["spawner", "--state"],
        ["spawner", "--state", "relative"],
        ["spawner", "--state", str(tmp_path), "--allow-source", str(tmp_path / "none")],
        ["spawner", "--state", str(tmp_path), "--allow-ids", "9-1"],
        ["spawner", "--state", str(tmp_path), "--no-such-flag", "x"],
    ):
        done = subprocess.run([kp_init, *flags], capture_output=True, text=True, check=False, timeout=10)
        assert done.returncode == 2
        assert "usage:" in done.stderr
    assert list(tmp_path.iterdir()) == []
    assert (
        shutil.which("ldd") is None
        or "not a dynamic" in subprocess.run(["ldd", kp_init], capture_output=True, text=True, check=False).stderr
    )
