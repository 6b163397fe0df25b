"""Byte streams over a link: reading, writing, ending, and what credit forbids."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import aiohttp
import pytest

from kernpool_mesh.codec import decode, encode
from kernpool_mesh.errors import LinkBusyError, StreamResetError, StreamStateError
from kernpool_mesh.link import Link, LinkConfig, LinkEndCause
from kernpool_mesh.messages import (
    Message,
    Reply,
    StreamCredit,
    StreamData,
    StreamEof,
    StreamOpen,
    StreamReset,
)
from kernpool_mesh.stream import LinkStream
from kernpool_mesh.transport import serve_stream

if TYPE_CHECKING:
    from tests.mesh.conftest import Dial, Links, Until

CREDIT = 256 * 1024


def serve(link: Link, handler: Callable[[LinkStream], Awaitable[None]]) -> list["asyncio.Task[None]"]:
    """Run `handler` on each stream that the other side opens."""
    tasks: list[asyncio.Task[None]] = []

    async def run(stream: LinkStream) -> None:
        await handler(stream)

    link.on_stream(lambda stream: tasks.append(asyncio.create_task(run(stream))))
    return tasks


async def echo(stream: LinkStream) -> None:
    while data := await stream.read():
        stream.write(data)
        await stream.drain()
    stream.write_eof()


async def read_all(stream: LinkStream, into: list[bytes] | None = None) -> bytes:
    pieces: list[bytes] = [] if into is None else into
    while data := await stream.read():
        pieces.append(data)
    return b"".join(pieces)


def forgotten(links: "Links") -> Callable[[], bool]:
    """Whether both sides have forgotten every stream."""
    return lambda: not (links.coordinator.link.streams_open or links.agent.link.streams_open)


@pytest.mark.parametrize("opener", ["coordinator", "agent"])
async def test_either_side_opens_and_bytes_come_back(dial: "Dial", until: "Until", opener: str) -> None:
    """The tunnel of a data-plane request."""
    links = await dial.links()
    near, far = (links.coordinator, links.agent) if opener == "coordinator" else (links.agent, links.coordinator)
    serve(far.link, echo)
    stream = near.link.open_stream("ann", "sandbox/sb-a", ["exec"])
    stream.write(b"hello ")
    stream.write(bytearray(b"world"))
    stream.write(memoryview(b"!"))
    stream.write(b"")
    stream.write_eof()
    assert await read_all(stream) == b"hello world!"
    await stream.wait_closed()
    await until(forgotten(links))


async def test_the_serving_side_learns_who_acts_on_what(dial: "Dial") -> None:
    """The agent checks each request against the stream's rights."""
    links = await dial.links()
    opened: asyncio.Future[LinkStream] = asyncio.get_running_loop().create_future()
    links.agent.link.on_stream(opened.set_result)
    links.coordinator.link.open_stream("ann", "sandbox/sb-a", ["exec", "read"])
    stream = await opened
    assert (stream.actor, stream.object, stream.verbs) == ("ann", "sandbox/sb-a", ("exec", "read"))


async def test_a_large_transfer_keeps_every_byte_and_little_memory(dial: "Dial") -> None:
    """20 MB there and back, through queues of a fraction of that."""
    links = await dial.links()
    serve(links.agent.link, echo)
    stream = links.coordinator.link.open_stream("ann", "sandbox/sb-a", [])
    block = bytes(range(256)) * 1000
    highest = 0

    async def write() -> None:
        nonlocal highest
        for _ in range(80):
            stream.write(block)
            await stream.drain()
            highest = max(highest, stream.queued_bytes)
        stream.write_eof()

    writing = asyncio.create_task(write())
    assert await read_all(stream) == block * 80
    await writing
    assert highest <= 64 * 1024


async def test_a_reader_that_stops_stops_the_writer(dial: "Dial", until: "Until") -> None:
    """A client pauses its download: what it does not read must not pile up in the agent."""
    links = await dial.links()
    opened: asyncio.Future[LinkStream] = asyncio.get_running_loop().create_future()
    links.agent.link.on_stream(opened.set_result)
    stream = links.coordinator.link.open_stream("ann", "sandbox/sb-a", [])
    stream.write(b"x" * (4 * CREDIT))
    draining = asyncio.create_task(stream.drain())
    await until(lambda: stream.queued_bytes <= 3 * CREDIT)
    await links.coordinator.link.send(Reply(1))
    await links.agent.wait_for(1)
    assert stream.queued_bytes == 3 * CREDIT, "exactly the credit went out"
    assert not draining.done()
    reader = await opened
    received = 0
    while received < 4 * CREDIT:
        received += len(await reader.read())
    await draining


async def test_half_close_lets_the_answer_come(dial: "Dial") -> None:
    """`sort` reads all of its input before it writes the first line."""
    links = await dial.links()

    async def sort(stream: LinkStream) -> None:
        lines = (await read_all(stream)).split()
        stream.write(b" ".join(sorted(lines)))
        stream.write_eof()

    serve(links.agent.link, sort)
    stream = links.coordinator.link.open_stream("ann", "sandbox/sb-a", [])
    stream.write(b"c a b")
    stream.write_eof()
    with pytest.raises(StreamStateError, match="ended its direction"):
        stream.write(b"more")
    assert await read_all(stream) == b"a b c"


@pytest.mark.parametrize("by", ["opener", "server"])
async def test_a_reset_ends_both_sides_with_its_reason(dial: "Dial", until: "Until", by: str) -> None:
    """A client goes away, or the agent gives up."""
    links = await dial.links()
    opened: asyncio.Future[LinkStream] = asyncio.get_running_loop().create_future()
    links.agent.link.on_stream(opened.set_result)
    near = links.coordinator.link.open_stream("ann", "sandbox/sb-a", [])
    near.write(b"before")
    far = await opened
    assert await far.read() == b"before"
    one, other = (near, far) if by == "opener" else (far, near)
    reading = asyncio.create_task(other.read())
    await asyncio.sleep(0)
    one.reset("out of patience")
    one.reset("twice does no harm")
    with pytest.raises(StreamResetError, match="out of patience"):
        await reading
    for stream in (one, other):
        with pytest.raises(StreamResetError, match="out of patience"):
            stream.write(b"x")
        with pytest.raises(StreamResetError):
            await stream.drain()
        await stream.wait_closed()
    await until(forgotten(links))


async def test_bytes_that_came_before_a_reset_can_still_be_read(dial: "Dial", until: "Until") -> None:
    """The last output of a process whose stream broke."""
    links = await dial.links()
    opened: asyncio.Future[LinkStream] = asyncio.get_running_loop().create_future()
    links.agent.link.on_stream(opened.set_result)
    near = links.coordinator.link.open_stream("ann", "sandbox/sb-a", [])
    far = await opened
    far.write(b"last words")
    await links.agent.link.send(Reply(1))
    await until(lambda: not far.queued_bytes)
    far.reset("gone")
    await near.wait_closed()
    assert await near.read() == b"last words"
    with pytest.raises(StreamResetError, match="gone"):
        await near.read()


async def test_streams_end_with_their_link_and_say_so(dial: "Dial") -> None:
    """The agent stops in the middle of a transfer."""
    links = await dial.links()
    opened: asyncio.Future[LinkStream] = asyncio.get_running_loop().create_future()
    links.agent.link.on_stream(opened.set_result)
    stream = links.coordinator.link.open_stream("ann", "sandbox/sb-a", [])
    stream.write(b"x" * (4 * CREDIT))
    tasks = [asyncio.create_task(stream.read()), asyncio.create_task(stream.drain())]
    await opened
    await links.agent.link.close("the agent stops")
    for task in tasks:
        with pytest.raises(StreamResetError, match="the agent stops"):
            await task


async def test_a_side_that_serves_no_streams_refuses_them(dial: "Dial") -> None:
    """An agent opens a stream to a coordinator that expects none."""
    links = await dial.links()
    stream = links.agent.link.open_stream("ann", "sandbox/sb-a", [])
    with pytest.raises(StreamResetError, match="serves no streams"):
        await stream.read()


async def test_a_failing_stream_handler_costs_its_stream_only(dial: "Dial", caplog: pytest.LogCaptureFixture) -> None:
    """A bug in the agent's server."""
    links = await dial.links()

    def fail(_stream: LinkStream) -> None:
        raise KeyError("bug")

    links.agent.link.on_stream(fail)
    stream = links.coordinator.link.open_stream("ann", "sandbox/sb-a", [])
    with pytest.raises(StreamResetError, match="internal error"):
        await stream.read()
    await links.coordinator.link.send(Reply(1))
    assert await links.agent.wait_for(1) == [Reply(1)]
    assert [record.getMessage() for record in caplog.records if "stream handler failed" in record.getMessage()]


async def test_too_many_streams_are_refused_on_both_sides(dial: "Dial") -> None:
    """A loop opens streams and never ends them."""
    links = await dial.links(LinkConfig(streams_max=4))
    links.agent.link.on_stream(lambda _stream: None)
    streams = [links.coordinator.link.open_stream("ann", "o", []) for _ in range(4)]
    with pytest.raises(LinkBusyError, match="4 streams are open"):
        links.coordinator.link.open_stream("ann", "o", [])
    streams[0].reset()
    links.coordinator.link.open_stream("ann", "o", [])
    with pytest.raises(ValueError, match="512 characters"):
        links.coordinator.link.open_stream("a" * 600, "o", [])


async def next_message(raw: aiohttp.ClientWebSocketResponse) -> Message:
    return decode(await raw.receive_bytes())


async def test_a_peer_that_opens_too_many_streams_is_refused_one_by_one(dial: "Dial") -> None:
    """A compromised coordinator, or a bug there."""
    end, raw = await dial.raw(LinkConfig(streams_max=2))
    end.link.on_stream(lambda _stream: None)
    end.run()
    for stream_id in (1, 3, 5):
        await raw.send_bytes(encode(StreamOpen(stream_id, "ann", "o", [], CREDIT)))
    refusal = await next_message(raw)
    assert isinstance(refusal, StreamReset)
    assert refusal.stream_id == 5
    assert "2 streams are open" in refusal.error
    await raw.send_bytes(encode(StreamData(5, b"sent before the refusal came")))
    await raw.send_bytes(encode(Reply(1)))
    assert await end.wait_for(1) == [Reply(1)]


async def test_a_peer_that_exceeds_its_credit_loses_the_stream(dial: "Dial") -> None:
    """A compromised node floods the coordinator: only what the credit allows is ever held."""
    end, raw = await dial.raw()
    end.run()
    stream = end.link.open_stream("ann", "sandbox/sb-a", [])
    assert isinstance(await next_message(raw), StreamOpen)
    piece = b"x" * 16_000
    for _ in range(CREDIT // 16_000 + 1):
        await raw.send_bytes(encode(StreamData(stream.stream_id, piece)))
    refusal = await next_message(raw)
    assert isinstance(refusal, StreamReset)
    assert "with credit for" in refusal.error
    pieces: list[bytes] = []
    with pytest.raises(StreamResetError, match="with credit for"):
        await read_all(stream, pieces)
    assert len(b"".join(pieces)) <= CREDIT
    await raw.send_bytes(encode(Reply(1)))
    assert await end.wait_for(1) == [Reply(1)], "the link goes on"


@pytest.mark.parametrize(
    "frames",
    [
        [StreamEof(2), StreamData(2, b"after the end")],
        [StreamEof(2), StreamEof(2)],
        [StreamCredit(2, 0)],
        [StreamCredit(2, 2**31)],
        [StreamCredit(2, -5)],
    ],
)
async def test_a_peer_out_of_order_loses_the_stream(dial: "Dial", frames: list[Message]) -> None:
    """Data after the end, two ends, credit of nothing or of everything."""
    end, raw = await dial.raw()
    end.run()
    stream = end.link.open_stream("ann", "sandbox/sb-a", [])
    assert isinstance(await next_message(raw), StreamOpen)
    for frame in frames:
        await raw.send_bytes(encode(frame))
    assert isinstance(await next_message(raw), StreamReset)
    assert stream.closed
    assert end.link.end is None


async def test_tiny_frames_cannot_multiply_their_credit_in_memory(dial: "Dial") -> None:
    """A peer spends its credit byte by byte: 256 KiB of credit must not become 10 MB of objects."""
    end, raw = await dial.raw()
    end.run()
    stream = end.link.open_stream("ann", "sandbox/sb-a", [])
    frame = encode(StreamData(stream.stream_id, b"x"))
    for _ in range(10_000):
        await raw.send_bytes(frame)
    await raw.send_bytes(encode(Reply(1)))
    await end.wait_for(1)
    assert len(stream._own._buffer) < 10
    received = 0
    while received < 10_000:
        received += len(await stream.read())


async def test_streams_share_the_line_in_turn(dial: "Dial") -> None:
    """A small download must not wait for the end of a large one."""
    end, raw = await dial.raw(LinkConfig(stream_credit_bytes=64 << 20))
    large, small = (end.link.open_stream("ann", name, []) for name in ("large", "small"))
    large.write(b"x" * (32 << 20))
    small.write(b"x" * 100_000)
    small.write_eof()
    frames_of_large = 0
    while True:
        message = await next_message(raw)
        if isinstance(message, StreamData):
            frames_of_large += message.stream_id == large.stream_id
        if message == StreamEof(small.stream_id):
            break
    assert frames_of_large <= 10


async def test_small_reads_give_small_pieces(dial: "Dial") -> None:
    """A reader asks for a header of a few bytes."""
    links = await dial.links()
    serve(links.agent.link, echo)
    stream = links.coordinator.link.open_stream("ann", "o", [])
    stream.write(b"abcdefgh")
    stream.write_eof()
    assert [await stream.read(3) for _ in range(4)] == [b"abc", b"def", b"gh", b""]


async def test_a_bulk_link_takes_larger_frames_and_more_credit(dial: "Dial") -> None:
    """Large transfers open connections of their own, with 256 KiB frames (DECISIONS 19)."""
    config = LinkConfig(frame_bytes_max=256 * 1024, stream_credit_bytes=4 << 20)
    links = await dial.links(config)
    serve(links.agent.link, echo)
    stream = links.coordinator.link.open_stream("ann", "o", [])
    stream.write(b"x" * (8 << 20))
    stream.write_eof()
    assert len(await read_all(stream)) == 8 << 20


@pytest.mark.parametrize("seed", range(10))
async def test_any_frames_in_any_order_never_break_the_link_itself(dial: "Dial", until: "Until", seed: int) -> None:
    """A compromised node sends well-formed frames that make no sense: they cost him his streams, nobody else's."""
    rng = random.Random(seed)
    end, raw = await dial.raw(LinkConfig(streams_max=8))
    end.link.on_stream(lambda stream: serve_stream(stream, asyncio.Protocol) if rng.random() < 0.5 else None)
    end.run()
    streams = [end.link.open_stream("ann", "o", []) for _ in range(4)]
    for stream in streams:
        stream.write(b"x" * 100_000)

    opened = 0

    def frame() -> Message:
        nonlocal opened
        stream_id = rng.choice([2, 4, 6, 8, *range(1, 2 * opened, 2)])
        if rng.random() < 0.2:
            opened += 1
            return StreamOpen(2 * opened - 1, "a", "o", ["v"], rng.choice([0, CREDIT]))
        return rng.choice(
            [
                StreamData(stream_id, b"x" * rng.choice([0, 1, 16_000])),
                StreamCredit(stream_id, rng.choice([1, 100_000, 0, -1, 2**31])),
                StreamEof(stream_id),
                StreamReset(stream_id, "x" * rng.choice([0, 5000])),
                Reply(1),
            ]
        )

    for _ in range(200):
        await raw.send_bytes(encode(frame()))
    await raw.send_bytes(encode(Reply(2)))
    await until(lambda: Reply(2) in end.received)
    await end.link.close()
    assert end.link.streams_open == 0
    assert (await end.ended()).cause is LinkEndCause.CLOSED_HERE
