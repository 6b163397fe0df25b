"""Files inside a sandbox are read and written by a helper inside it, never by the agent or PID 1."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kernpool_sandbox.kpinit.files import InitFiles
from kernpool_sandbox.kpinit.plan import FileOp, FileSpec, FileType


async def content(files: InitFiles, path: str, offset: int = 0, limit: int = -1) -> bytes:
    return b"".join([chunk async for chunk in files.read(path, offset, limit)])


async def test_what_is_written_is_read_again(node: Any) -> None:
    """An upload of some MiB, in pieces, arrives whole."""
    box = await node.box()
    files = InitFiles(box.client)
    data = os.urandom(3_000_000)

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(data), 100_000):
            yield data[start : start + 100_000]

    assert await files.write("/tmp/a/b/data", pieces(), mode=0o640, parents=True) == len(data)
    assert await content(files, "/tmp/a/b/data") == data
    assert await content(files, "/tmp/a/b/data", 1_000_000, 10) == data[1_000_000:1_000_010]
    assert await content(files, "/tmp/a/b/data", 5_000_000) == b""
    assert await box.sh("stat -c '%a %u %s' /tmp/a/b/data") == "640 0 3000000\n"


async def test_a_write_truncates_or_patches_in_place(node: Any) -> None:
    """A shorter new version leaves no tail of the old one; an offset changes only what it covers."""
    box = await node.box()
    files = InitFiles(box.client)
    await files.write("/tmp/f", b"0123456789")
    await files.write("/tmp/f", b"AB", offset=4)
    assert await content(files, "/tmp/f") == b"0123AB6789"
    await files.write("/tmp/f", b"")
    assert await content(files, "/tmp/f") == b""


async def test_a_directory_is_listed_with_what_its_entries_are(node: Any) -> None:
    """A file browser needs types, sizes, modes, times and where links point."""
    box = await node.box()
    files = InitFiles(box.client)
    await box.sh(
        "mkdir /tmp/d; cd /tmp/d; printf abc > file; ln -s /etc/passwd link; mkfifo pipe; mkdir sub; touch 'a b\n'"
    )
    entries = {entry.name: entry for entry in await files.list("/tmp/d")}
    assert list(entries) == ["a b\n", "file", "link", "pipe", "sub"]
    assert [entry.type for entry in entries.values()] == [
        FileType.FILE,
        FileType.FILE,
        FileType.SYMLINK,
        FileType.OTHER,
        FileType.DIR,
    ]
    assert (entries["file"].size, entries["link"].link) == (3, "/etc/passwd")
    assert (await files.stat("/tmp/d/file")).mtime_ns == entries["file"].mtime_ns > 0
    assert (await files.stat("/tmp/d")).name == "d"


async def test_directories_are_made_moved_and_removed(node: Any) -> None:
    """mkdir -p, mv and rm -r, with the errors that people know."""
    box = await node.box()
    files = InitFiles(box.client)
    await files.mkdir("/tmp/x/y/z", parents=True)
    await files.mkdir("/tmp/x/y/z", parents=True)
    with pytest.raises(FileExistsError):
        await files.mkdir("/tmp/x")
    await files.write("/tmp/x/y/z/f", b"1")
    await files.move("/tmp/x/y", "/tmp/new/place", parents=True)
    assert await content(files, "/tmp/new/place/z/f") == b"1"
    with pytest.raises(OSError, match="not empty"):
        await files.remove("/tmp/new")
    await box.sh("ln -s /etc /tmp/new/place/etc")
    await files.remove("/tmp/new", recursive=True)
    assert [entry.name for entry in await files.list("/tmp")] == ["x"]
    assert [entry.name for entry in await files.list("/etc")] == ["group", "machine-id", "passwd"]
    with pytest.raises(FileNotFoundError):
        await files.remove("/tmp/new", recursive=True)


async def test_errors_are_those_of_the_asked_user(root_node: Any) -> None:
    """bob may not read root's key through the API either."""
    box = await root_node.box()
    await box.sh("echo secret > /root/key; chmod 600 /root/key")
    bob = InitFiles(box.client, user="bob")
    with pytest.raises(PermissionError):
        await content(bob, "/root/key")
    with pytest.raises(PermissionError):
        await bob.write("/etc/new", b"")
    await bob.write("/tmp/mine", b"x")
    assert await box.sh("stat -c %u:%g /tmp/mine") == "1000:1000\n"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/none", errno.ENOENT),
        ("/tmp", errno.EISDIR),
        ("/tmp/fifo", errno.EINVAL),
        ("/dev/zero", errno.EINVAL),
        ("/proc/self/mem", errno.EACCES),
        ("/proc/self/environ", errno.EACCES),
        ("/proc/self/fd/0", errno.ELOOP),
        ("/proc/1/root/etc/passwd", errno.EACCES),
        ("relative", errno.EINVAL),
    ],
)
async def test_only_regular_files_are_opened(node: Any, path: str, code: int) -> None:
    """A FIFO must not hang PID 1, and /proc must not show the helper's own memory."""
    box = await node.box()
    await box.sh("mkfifo /tmp/fifo")
    with pytest.raises(OSError) as caught:
        await content(InitFiles(box.client), path)
    assert caught.value.errno == code, caught.value
    await box.client.ping()


async def test_a_reader_that_goes_away_ends_the_helper(node: Any) -> None:
    """A client that hangs up in the middle of a download leaves no process behind."""
    box = await node.box()
    files = InitFiles(box.client)
    await box.sh("head -c 5000000 /dev/zero > /tmp/big")
    stream = files.read("/tmp/big")
    assert len(await anext(stream)) > 0
    await stream.aclose()  # type: ignore[attr-defined]
    await box.sh("while [ $(ls /proc | grep -c '^[0-9]*$') -gt 6 ]; do :; done", timeout_s=10)


async def test_a_transfer_without_progress_times_out(node: Any) -> None:
    """A client that stops sending must not hold a process in the sandbox for ever."""
    box = await node.box()
    reading, writing = os.pipe()
    future = box.client.start_file(FileSpec(FileOp.WRITE, "/tmp/slow", deadline_s=0.2), reading)
    os.close(reading)
    frame = await asyncio.wait_for(future, 10)
    assert frame.a == -errno.ETIMEDOUT
    os.close(writing)


async def test_many_files_at_once_are_bounded_not_lost(node: Any) -> None:
    """32 helpers at once, then EAGAIN: a thousand uploads cannot fork-bomb a sandbox."""
    box = await node.box()
    pipes = [os.pipe() for _ in range(40)]
    futures = [box.client.start_file(FileSpec(FileOp.WRITE, f"/tmp/{i}"), pipe[0]) for i, pipe in enumerate(pipes)]
    for reading, writing in pipes:
        os.close(reading)
        os.close(writing)
    answers = [(await future).a for future in futures]
    assert set(answers) <= {0, -errno.EAGAIN}
    assert answers.count(0) >= 32


async def test_a_full_disk_is_an_error_of_the_write(node: Any) -> None:
    """ENOSPC reaches the client, with how much was written."""
    box = await node.box()
    with pytest.raises(OSError, match="No space left"):
        await InitFiles(box.client).write("/tmp/big", b"x" * (20 << 20))


async def test_deep_trees_are_removed_without_following_links(node: Any) -> None:
    """node_modules is deep; a link in it to / must not empty the sandbox."""
    box = await node.box()
    await box.sh("cd /tmp; for i in $(seq 200); do mkdir d; ln -s / d/l; cd d; done")
    await InitFiles(box.client).remove("/tmp/d", recursive=True)
    assert await box.sh("ls /tmp; ls /etc | wc -l") == "3\n"
