"""Files of a live sandbox through both doors: every byte, any size, any name, and nothing outside of it."""

import asyncio
import hashlib
import os
import urllib.parse
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import psutil
import pytest
import pytest_asyncio

from kernpool_mesh.messages import Command, Limits, Template

if TYPE_CHECKING:
    from tests.agent.dataplane.conftest import Door, Node

pytestmark = pytest.mark.asyncio(loop_scope="package")


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def sandbox(node: "Node") -> str:
    return await node.sandbox()


def quoted(path: str | bytes) -> str:
    return urllib.parse.quote(path, safe="/")


def files(door: "Door", method: str, sandbox: str, what: str, **options: Any) -> Any:
    verb = "read" if method == "GET" else "write"
    return door.request(method, f"/v1/sandboxes/{sandbox}/files{what}", f"sandbox/{sandbox}", [verb], **options)


async def put(door: "Door", sandbox: str, path: str | bytes, data: Any, extra: str = "") -> int:
    async with files(door, "PUT", sandbox, f"?path={quoted(path)}{extra}", data=data) as response:
        return int(response.status)


async def get(door: "Door", sandbox: str, path: str | bytes, extra: str = "") -> tuple[int, bytes]:
    async with files(door, "GET", sandbox, f"?path={quoted(path)}{extra}") as response:
        return response.status, await response.read()


async def stat(door: "Door", sandbox: str, path: str | bytes) -> dict[str, Any]:
    async with files(door, "GET", sandbox, f"/stat?path={quoted(path)}") as response:
        body: dict[str, Any] = await response.json(content_type=None)
        return body


async def code_of(response: aiohttp.ClientResponse) -> tuple[int, str]:
    return response.status, (await response.json(content_type=None))["code"]


async def test_a_file_comes_back_as_it_was_written(door: "Door", sandbox: str) -> None:
    """Text, bytes, nothing at all; missing directories are made."""
    for n, data in enumerate((b"", b"text\n", bytes(range(256)) * 4000)):
        path = f"/tmp/{door.name}/deep/er/{n}"
        assert await put(door, sandbox, path, data) == 204
        assert await get(door, sandbox, path) == (200, data)
        assert (await stat(door, sandbox, path))["size"] == len(data)


async def test_a_part_of_a_file_is_read_by_offset_and_limit(door: "Door", sandbox: str) -> None:
    """A viewer scrolls in a large file."""
    path = f"/tmp/{door.name}-part"
    await put(door, sandbox, path, b"0123456789")
    for extra, expected in (
        ("&offset=3", b"3456789"),
        ("&limit=4", b"0123"),
        ("&offset=3&limit=4", b"3456"),
        ("&offset=99", b""),
        ("&limit=0", b""),
    ):
        assert await get(door, sandbox, path, extra) == (200, expected)


async def test_mode_and_user_are_as_asked(door: "Door", sandbox: str, node: "Node") -> None:
    """A script is uploaded as an ordinary user and can be run."""
    path = f"/tmp/{door.name}-script"
    assert await put(door, sandbox, path, b"#!/bin/sh\necho ran\n", f"&mode=755&user={node.second_user}") == 204
    entry = await stat(door, sandbox, path)
    assert (entry["mode"], entry["uid"], entry["type"]) == (0o755, int(node.second_user), "file")


async def test_names_are_bytes_and_survive(door: "Door", sandbox: str) -> None:
    """Spaces, newlines, percent signs, plus signs, emoji, and a byte that is no UTF-8."""
    names = [b"a b", b"a\nb", b"100%25", b"a+b", "grüße-🦀".encode(), b"caf\xe9", b"?x=1&y#z", b"-rf"]
    for name in names:
        path = b"/tmp/" + door.name.encode() + b"-names/" + name
        assert await put(door, sandbox, path, name) == 204
        assert await get(door, sandbox, path) == (200, name)
    async with files(door, "GET", sandbox, f"/list?path=/tmp/{door.name}-names") as response:
        listed = {os.fsencode(entry["name"]) for entry in (await response.json(content_type=None))["entries"]}
    assert listed == set(names)


async def test_a_directory_is_listed_made_moved_and_removed(door: "Door", sandbox: str) -> None:
    """A file manager's life."""
    base = f"/tmp/{door.name}-dir"
    async with files(door, "POST", sandbox, f"/mkdir?path={base}/a/b") as response:
        assert response.status == 204
    await put(door, sandbox, f"{base}/a/file", b"x" * 7)
    async with files(door, "GET", sandbox, f"/list?path={base}/a") as response:
        entries = (await response.json(content_type=None))["entries"]
    assert [(entry["name"], entry["type"], entry["size"]) for entry in entries if entry["type"] == "file"] == [
        ("file", "file", 7)
    ]
    assert {entry["name"] for entry in entries} == {"b", "file"}
    async with files(door, "POST", sandbox, f"/move?path={base}/a/file&to={base}/moved") as response:
        assert response.status == 204
    assert await get(door, sandbox, f"{base}/moved") == (200, b"x" * 7)
    async with files(door, "DELETE", sandbox, f"?path={base}") as response:
        assert await code_of(response) == (409, "conflict")
    async with files(door, "DELETE", sandbox, f"?path={base}&recursive=1") as response:
        assert response.status == 204
    assert (await get(door, sandbox, base))[0] == 404


async def test_errors_say_what_and_why(door: "Door", sandbox: str) -> None:
    """Each with the status a client can act on."""
    for method, what, expected in (
        ("GET", "?path=/no/such", (404, "not_found")),
        ("GET", "?path=/tmp", (400, "invalid")),
        ("GET", "/list?path=/etc/passwd", (400, "invalid")),
        ("GET", "/stat?path=/etc/passwd/x", (400, "invalid")),
        ("GET", "?path=", (400, "invalid")),
        ("GET", "", (400, "invalid")),
        ("GET", "?path=/tmp/%00", (400, "invalid")),
        ("GET", f"?path=/{'x' * 5000}", (400, "invalid")),
        ("GET", "?path=/tmp&offset=-1", (400, "invalid")),
        ("GET", "?path=/tmp&offset=1e3", (400, "invalid")),
        ("PUT", "?path=/tmp/x&mode=888", (400, "invalid")),
        ("PUT", "?path=/tmp/x&mode=77777", (400, "invalid")),
        ("PUT", "?path=/tmp", (400, "invalid")),
        ("PUT", "?path=/proc/version", (403, "forbidden")),
        ("POST", "/move?path=/no/such&to=/tmp/y", (404, "not_found")),
        ("DELETE", "?path=/no/such", (404, "not_found")),
    ):
        async with files(door, method, sandbox, what) as response:
            assert (method, what, await code_of(response)) == (method, what, expected)


async def test_another_user_of_the_sandbox_is_held_by_its_permissions(door: "Door", sandbox: str, node: "Node") -> None:
    """Uploads as an ordinary user cannot touch root's files."""
    if node.second_user == "0":
        pytest.skip("one id is mapped here: there is no second user in a sandbox")
    for method, what in (("PUT", "?path=/root/x"), ("GET", "?path=/etc/shadow-"), ("DELETE", "?path=/etc/hostname")):
        async with files(door, method, sandbox, f"{what}&user={node.second_user}") as response:
            assert response.status in (403, 404)


async def test_devices_pipes_and_endless_files_hang_nobody(door: "Door", sandbox: str, node: "Node") -> None:
    """A FIFO without a writer, a device without an end, a link to one."""
    await node.runtime.run(
        sandbox, Command(["sh", "-c", "cd /tmp; rm -f fifo link; mkfifo fifo; ln -s /dev/zero link"])
    )
    for path in ("/tmp/fifo", "/dev/zero", "/tmp/link", "/dev/null"):
        async with asyncio.timeout(10):
            assert (await get(door, sandbox, path))[0] == 400
            assert await put(door, sandbox, path, b"x") == 400


async def test_no_path_leads_to_the_host(door: "Door", sandbox: str, node: "Node", tmp_path: Path) -> None:
    """Dots, absolute links and /proc: a file of the host is never read and never written."""
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    up = "/.." * 20
    script = f"cd /tmp; ln -sfn / root; ln -sfn {up}{secret} out; ln -sfn {tmp_path} dir; mkdir -p {tmp_path.parent}"
    await node.runtime.run(sandbox, Command(["sh", "-c", script]))
    for path in (
        str(secret),
        f"{up}{secret}",
        "/tmp/out",
        "/tmp/dir/secret",
        f"/tmp/root{secret}",
        f"/proc/1/root{secret}",
        f"/proc/self/cwd/..{secret}",
        f"/proc/1/cwd{secret}",
    ):
        assert await get(door, sandbox, path) != (200, b"of the host")
        await put(door, sandbox, path, b"of the sandbox")
        assert secret.read_text() == "of the host"
        async with files(door, "DELETE", sandbox, f"?path={quoted(path)}&recursive=1") as response:
            await response.read()
        assert secret.exists()


@pytest.mark.parametrize("total", [128 << 20, pytest.param(1 << 30, marks=pytest.mark.full)])
async def test_a_large_file_goes_through_small_memory(door: "Door", node: "Node", total: int) -> None:
    """Up and down again, while the agent's memory hardly grows: nothing is held but what is on its way."""
    block = os.urandom(1 << 20)
    sandbox = await node.sandbox(template=Template(limits=Limits(memory_mib=1500, disk_mib=1100, pids=64)))
    memory = psutil.Process().memory_info
    before, highest = memory().rss, 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal highest
        for _ in range(total // len(block)):
            highest = max(highest, memory().rss)
            yield block

    assert await put(door, sandbox, "/tmp/large", body()) == 204
    sent = hashlib.sha256(block * (total // len(block))).digest()
    got, length = hashlib.sha256(), 0
    async with files(door, "GET", sandbox, "?path=/tmp/large") as response:
        async for chunk in response.content.iter_any():
            got.update(chunk)
            length += len(chunk)
            highest = max(highest, memory().rss)
    assert (length, got.digest()) == (total, sent)
    assert highest - before < 64 << 20
    await node.runtime.remove([sandbox])


async def test_a_full_disk_is_told(door: "Door", node: "Node") -> None:
    """The sandbox's own limit, while the upload is under way."""
    sandbox = await node.sandbox(template=Template(limits=Limits(memory_mib=256, disk_mib=16, pids=64)))

    async def body() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b"x" * (1 << 20)

    try:
        async with files(door, "PUT", sandbox, "?path=/tmp/large", data=body()) as response:
            assert await code_of(response) == (507, "disk_full")
    except aiohttp.ClientConnectionError:
        pass  # refused while it was still sending
    assert (await get(door, sandbox, "/etc/hostname"))[0] == 200
    await node.runtime.remove([sandbox])


async def test_an_upload_that_breaks_off_leaves_no_helper_behind(door: "Door", sandbox: str, node: "Node") -> None:
    """The client crashes in the midst of it."""
    started = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"x" * 100_000
        started.set()
        await asyncio.Event().wait()

    upload = asyncio.ensure_future(put(door, sandbox, "/tmp/broken", body()))
    await started.wait()
    upload.cancel()
    await asyncio.gather(upload, return_exceptions=True)
    script = "n=0; for f in /proc/[0-9]*; do n=$((n+1)); done; echo $n"
    async with asyncio.timeout(20):
        # PID 1, the command's shim and its shell are left.
        while int((await node.runtime.run(sandbox, Command(["sh", "-c", script]))).stdout) > 3:
            pass


async def test_a_sandbox_that_ended_has_no_files(door: "Door", node: "Node") -> None:
    """Gone, and the answer says how."""
    sandbox = await node.sandbox()
    await node.runtime.remove([sandbox])
    async with files(door, "GET", sandbox, "?path=/etc/hostname") as response:
        assert await code_of(response) == (410, "ended")
    async with files(door, "PUT", sandbox, "?path=/tmp/x", data=b"x") as response:
        assert await code_of(response) == (410, "ended")
