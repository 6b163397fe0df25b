"""Job logs through both doors: from an offset, the last lines, followed to the end, with losses told."""

import asyncio
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from kernpool_mesh.messages import AttemptState
from kernpool_mesh.reasons import EndReason

if TYPE_CHECKING:
    from tests.agent.dataplane.conftest import Door, Node

pytestmark = pytest.mark.asyncio(loop_scope="package")


def logs(door: "Door", job_id: str, query: str = "", index: int | str = 0) -> Any:
    return door.request("GET", f"/v1/jobs/{job_id}/{index}/logs{query}", f"job/{job_id}", ["logs"])


async def read(door: "Door", job_id: str, query: str = "") -> tuple[int, bytes]:
    """Returns (offset of the first byte, bytes)."""
    async with logs(door, job_id, query) as response:
        assert (response.status, response.content_type) == (200, "application/octet-stream")
        assert response.headers["KP-Log-Fence"] == "1"
        return int(response.headers["KP-Log-Offset"]), await response.read()


async def until_ended(node: "Node", job_id: str) -> None:
    async with asyncio.timeout(30):
        while not any(s.job_id == job_id and s.state is AttemptState.ENDED for s in node.jobs.statuses()):
            await node.updates.get()


async def test_the_log_of_an_ended_job_is_read_whole_in_part_and_by_lines(door: "Door", node: "Node") -> None:
    """The morning after."""
    job_id = await node.job("printf 'one\\ntwo\\nthree\\n'; printf '\\377\\303'")
    await until_ended(node, job_id)
    whole = b"one\ntwo\nthree\n\xff\xc3"
    assert await read(door, job_id) == (0, whole)
    assert await read(door, job_id, "?follow=1") == (0, whole)
    assert await read(door, job_id, "?offset=4") == (4, whole[4:])
    assert await read(door, job_id, "?tail=2") == (8, whole[8:])
    assert await read(door, job_id, "?tail=0") == (16, b"")
    assert await read(door, job_id, "?tail=99&follow=1") == (0, whole)
    assert await read(door, job_id, "?tail=2&offset=10") == (10, whole[10:])
    assert await read(door, job_id, "?offset=999") == (16, b"")
    async with logs(door, job_id) as response:
        assert response.headers["Content-Length"] == "16"


async def test_a_log_is_followed_from_before_its_first_byte_to_its_end(door: "Door", node: "Node") -> None:
    """`launch` follows at once: head, each line as it is printed, and the end when the job is over."""
    home = node.home
    job_id = await node.job(
        f"for n in 1 2 3; do while [ ! -e {home}/kp-{door.name}-$n ]; do sleep 0.002; done; echo $n; done", setup="true"
    )
    flags = [home / f"kp-{door.name}-{n}" for n in (1, 2, 3)]
    try:
        async with logs(door, job_id, "?follow=1") as response:
            for n, flag in enumerate(flags, 1):
                flag.touch()
                assert await asyncio.wait_for(response.content.readline(), 10) == b"%d\n" % n
            assert await asyncio.wait_for(response.read(), 10) == b""
    finally:
        for flag in flags:
            flag.unlink(missing_ok=True)


async def test_a_reader_that_asks_for_lost_bytes_is_told(door: "Door", node: "Node") -> None:
    """The job wrote more than its bound: the header says where the log begins now."""
    job_id = await node.job("head -c 3000000 /dev/zero; echo end", log_bytes_max=1 << 20)
    await until_ended(node, job_id)
    offset, data = await read(door, job_id, "?offset=5&follow=1")
    assert offset > 5
    assert (offset + len(data), data[-4:]) == (3_000_004, b"end\n")


async def test_a_follower_that_rotation_overtakes_is_cut_not_fed_with_a_gap(door: "Door", node: "Node") -> None:
    """It reads too slowly for a job that writes too fast: its connection breaks, and it can ask where it stands."""
    job_id = await node.job("head -c 200000000 /dev/zero; sleep 1000", log_bytes_max=1 << 20)
    got = 0
    async with logs(door, job_id, "?follow=1") as response:
        first = int(response.headers["KP-Log-Offset"])
        cut = False
        try:
            while chunk := await response.content.read(1 << 14):
                got += len(chunk)
                with node.jobs.log(job_id, 0) as log:
                    await log.wait_beyond(min(first + got + (8 << 20), 199_000_000))
        except aiohttp.ClientError:
            cut = True
    assert cut
    async with logs(door, job_id, f"?offset={first + got}") as response:
        assert int(response.headers["KP-Log-Offset"]) > first + got
    await node.jobs.stop(job_id, 0, 1, EndReason.CANCELLED, 0.0)
    await until_ended(node, job_id)


async def test_many_follow_one_log_and_leave_as_they_like(door: "Door", node: "Node") -> None:
    """A whole team watches a training run."""
    job_id = await node.job("echo up; sleep 1000")

    async def follow(stay: bool) -> bytes:
        async with logs(door, job_id, "?follow=1") as response:
            first: bytes = await asyncio.wait_for(response.content.readline(), 10)
            return first + await response.read() if stay else first

    assert await asyncio.gather(*(follow(stay=False) for _ in range(50))) == [b"up\n"] * 50
    staying = [asyncio.ensure_future(follow(stay=True)) for _ in range(50)]
    await asyncio.sleep(0)
    await node.jobs.stop(job_id, 0, 1, EndReason.CANCELLED, 0.0)
    assert await asyncio.wait_for(asyncio.gather(*staying), 30) == [b"up\n"] * 50


async def test_a_reader_without_follow_of_a_job_that_writes_for_ever_comes_to_an_end(
    door: "Door", node: "Node"
) -> None:
    """`kernpool logs` shows what is there now."""
    job_id = await node.job("yes", log_bytes_max=8 << 20)
    with node.jobs.log(job_id, 0) as log:
        await asyncio.wait_for(log.wait_beyond(100), 10)
    async with asyncio.timeout(30):
        for _ in range(3):
            try:
                _offset, data = await read(door, job_id, "?tail=10")
            except aiohttp.ClientError:
                continue  # rotation was faster; it says so by the cut
            assert data.startswith((b"y\n", b"\n"))
    await node.jobs.stop(job_id, 0, 1, EndReason.CANCELLED, 0.0)
    await until_ended(node, job_id)


@pytest.mark.parametrize(
    "query", ["?offset=-1", "?offset=x", "?offset=1e5", "?follow=2", "?follow=yes", "?tail=-1", "?tail=" + "9" * 30]
)
async def test_a_bad_parameter_is_a_problem(door: "Door", node: "Node", query: str) -> None:
    """By name."""
    job_id = await node.job("true")
    async with logs(door, job_id, query) as response:
        assert response.status == 400
        assert query[1:].split("=", maxsplit=1)[0] in (await response.json(content_type=None))["message"]


async def test_an_unknown_rank_is_not_found(door: "Door", node: "Node") -> None:
    """It runs on another node."""
    job_id = await node.job("true")
    for index, status in (("1", 404), ("x", 400), ("-1", 400), ("9" * 12, 400)):
        async with logs(door, job_id, index=index) as response:
            assert response.status == status
