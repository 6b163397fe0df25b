"""Files of a real sandbox, through the runtime."""

import errno
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from kernpool_sandbox.errors import FileError, SandboxEndedError
from kernpool_sandbox.kpinit.plan import FileType
from tests.sandbox.conftest import Node

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def box(shared: Node) -> str:
    return await shared.sandbox(ttl_s=600)


async def test_a_file_is_written_read_moved_listed_and_removed(shared: Node, box: str) -> None:
    """An agent uploads a repository and fetches a report."""
    files = shared.runtime.files(box)
    data = bytes(range(256)) * 8192

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(data), 100_000):
            yield data[start : start + 100_000]

    assert await files.write("/tmp/a/b/data", chunks(), mode=0o640) == len(data)
    assert b"".join([chunk async for chunk in files.read("/tmp/a/b/data")]) == data
    assert b"".join([chunk async for chunk in files.read("/tmp/a/b/data", 10, 5)]) == data[10:15]
    entry = await files.stat("/tmp/a/b/data")
    assert (entry.type, entry.mode, entry.size) == (FileType.FILE, 0o640, len(data))
    await files.mkdir("/tmp/a/c/d")
    await files.move("/tmp/a/b/data", "/tmp/a/c/moved")
    assert [one.name for one in await files.list("/tmp/a/c")] == ["d", "moved"]
    await files.remove("/tmp/a/c/moved")
    with pytest.raises(FileError, match="cannot remove /tmp/a in the sandbox: Directory not empty"):
        await files.remove("/tmp/a")
    await files.remove("/tmp/a", recursive=True)
    with pytest.raises(FileError, match="No such file") as caught:
        await files.stat("/tmp/a")
    assert caught.value.errno == errno.ENOENT


async def test_a_link_leads_nowhere_but_into_the_sandbox(shared: Node, box: str) -> None:
    """A link to /etc/passwd, to /proc/1/root, out by dots: all are the sandbox's own."""
    await shared.sh(
        box, "ln -sf /etc/passwd /tmp/l1; ln -sf ../../../../../../etc/hostname /tmp/l2; ln -sf /proc/1/root /tmp/l3"
    )
    files = shared.runtime.files(box)
    own = (await shared.sh(box, "cat /etc/passwd")).stdout
    assert b"".join([chunk async for chunk in files.read("/tmp/l1")]) == own
    assert b"".join([chunk async for chunk in files.read("/tmp/l2")]) == b"sandbox\n"
    with pytest.raises(FileError):
        _ = [chunk async for chunk in files.read("/tmp/l3/etc/hostname")]


async def test_what_is_no_regular_file_is_refused_at_once(shared: Node, box: str) -> None:
    """A FIFO that nobody writes, an endless device, a directory."""
    await shared.sh(box, "mkfifo /tmp/fifo")
    files = shared.runtime.files(box)
    for path in ("/tmp/fifo", "/dev/zero", "/tmp"):
        with pytest.raises(FileError):
            _ = [chunk async for chunk in files.read(path)]


async def test_another_user_has_other_rights(shared: Node, box: str) -> None:
    """What the template's user may not do, the file API may not do either."""
    if shared.runtime.isolation.uids != "range":
        pytest.skip("single-id node: there is one user inside")
    if not shared.runtime.isolation.idmap:
        pytest.skip("nothing can be idmapped here: the made-up home belongs to no user inside")
    files = shared.runtime.files(box).as_user("user")
    with pytest.raises(FileError, match="Permission denied"):
        await files.write("/root/x", b"x")
    await files.write("/home/user/x", b"mine")
    entry = await files.stat("/home/user/x")
    assert (entry.uid, entry.gid) == (1000, 1000)


async def test_files_of_an_ended_sandbox_are_told_to_be_gone(shared: Node) -> None:
    """A download from a sandbox that was deleted."""
    box = await shared.sandbox()
    files = shared.runtime.files(box)
    await shared.runtime.remove([box])
    with pytest.raises(SandboxEndedError, match="is over: cancelled"):
        await files.stat("/tmp")
    with pytest.raises(SandboxEndedError):
        shared.runtime.files(box)
