"""Messages over a link: order, limits, and every way in which it ends."""

import asyncio
import gc
import logging
import os
import socket
import ssl
from typing import TYPE_CHECKING

import aiohttp
import msgpack
import psutil
import pytest
from aiohttp import WSMsgType

from kernpool_mesh.codec import decode, encode
from kernpool_mesh.errors import LinkBusyError, LinkClosedError, MessageTooLargeError
from kernpool_mesh.link import Link, LinkConfig, LinkEndCause, Side
from kernpool_mesh.messages import (
    FRAME_BYTES_MAX,
    Fragment,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Message,
    Reply,
    Resources,
    SandboxItem,
    SandboxItems,
    StreamData,
    Welcome,
)
from kernpool_mesh.websocket import connect_websocket

if TYPE_CHECKING:
    from tests.mesh.conftest import Dial

BIG = "x" * 1_000_000


async def test_messages_arrive_in_order_both_ways(dial: "Dial") -> None:
    """The ordinary life of a link."""
    links = await dial.links()
    for seq in range(500):
        links.agent.link.send_nowait(Heartbeat(seq, Resources(seq)))
        await links.coordinator.link.send(HeartbeatAck(seq, 1.5))
    assert await links.coordinator.wait_for(500) == [Heartbeat(seq, Resources(seq)) for seq in range(500)]
    assert await links.agent.wait_for(500) == [HeartbeatAck(seq, 1.5) for seq in range(500)]


async def test_the_greeting_comes_before_the_handler(dial: "Dial") -> None:
    """Hello and Welcome are exchanged before either side knows what to do with other messages."""
    links = await dial.links(run=False)
    hello, welcome = Hello(1, 1, "n-a", 1, "b", "0.1"), Welcome(1, "c-1", "kp", 1.0, 2.0)
    await links.agent.link.send(hello)
    assert await links.coordinator.link.receive() == hello
    await links.coordinator.link.send(welcome)
    await links.coordinator.link.send(HeartbeatAck(1, 1.0))
    links.coordinator.run()
    assert await links.agent.link.receive() == welcome
    assert await links.agent.run().wait_for(1) == [HeartbeatAck(1, 1.0)]


async def test_a_message_larger_than_a_frame_arrives_whole(dial: "Dial") -> None:
    """A command wrote a megabyte, and its result is one message."""
    links = await dial.links()
    items = SandboxItems(1, [SandboxItem("sb-a", error=BIG)])
    await links.agent.link.send(items)
    await links.agent.link.send(Reply(2))
    assert await links.coordinator.wait_for(2) == [items, Reply(2)]


async def test_no_frame_exceeds_the_limit(dial: "Dial") -> None:
    """A long message must not hold up the heartbeat of a slow line."""
    end, raw = await dial.raw()
    await end.link.send(Reply(1, error=BIG))
    pieces = []
    while True:
        frame = await raw.receive_bytes()
        assert len(frame) <= FRAME_BYTES_MAX
        fragment = decode(frame)
        assert isinstance(fragment, Fragment)
        pieces.append(fragment.data)
        if fragment.last:
            break
    assert decode(b"".join(pieces)) == Reply(1, error=BIG)


async def test_a_message_beyond_all_bounds_is_refused_where_it_is_made(dial: "Dial") -> None:
    """5 MiB in one message: the caller learns it, the link goes on."""
    links = await dial.links()
    with pytest.raises(MessageTooLargeError):
        await links.agent.link.send(Reply(1, error="x" * (5 << 20)))
    await links.agent.link.send(Reply(2))
    assert await links.coordinator.wait_for(1) == [Reply(2)]


async def test_a_full_queue_refuses_at_once_or_waits_for_room(dial: "Dial") -> None:
    """The other side reads nothing for a while: memory must stay bounded, and nothing is lost."""
    end, raw = await dial.raw(LinkConfig(send_queue_bytes_max=100_000))
    sent = 0

    async def send_until_refused() -> None:
        nonlocal sent
        while True:
            end.link.send_nowait(Reply(sent, error="x" * 10_000))
            sent += 1
            await asyncio.sleep(0)

    with pytest.raises(LinkBusyError, match="wait to be sent"):
        await send_until_refused()
    waiting = [asyncio.create_task(end.link.send(Reply(seq, error="x" * 10_000))) for seq in range(sent, sent + 3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    assert end.link.queued_bytes < 150_000
    for seq in range(sent + 3):
        assert decode(await raw.receive_bytes()) == Reply(seq, error="x" * 10_000)
    await asyncio.gather(*waiting)


async def test_messages_go_before_stream_data(dial: "Dial") -> None:
    """A download fills the line: the heartbeat behind it must not wait for its end."""
    end, raw = await dial.raw(LinkConfig(stream_credit_bytes=64 << 20))
    stream = end.link.open_stream("ann", "sandbox/sb-a", ["read"])
    stream.write(b"x" * (32 << 20))
    first = decode(await raw.receive_bytes())
    await end.link.send(Reply(7))
    frames_before = 0
    message: Message = first
    while message != Reply(7):
        message = decode(await raw.receive_bytes())
        frames_before += isinstance(message, StreamData)
    assert stream.queued_bytes > 0, "it overtook what was written before it"
    assert frames_before < 1500


async def test_a_failing_handler_closes_the_link_with_one_logged_sentence(
    dial: "Dial", caplog: pytest.LogCaptureFixture
) -> None:
    """A bug in a handler: a link that goes on without its handler would look alive and do nothing."""
    links = await dial.links(run=False)
    links.agent.run()

    def fail(_message: Message) -> None:
        raise KeyError("bug")

    links.coordinator.run(fail)
    stream = links.agent.link.open_stream("ann", "sandbox/sb-a", [])
    await links.agent.link.send(Reply(1))
    assert (await links.coordinator.ended()).cause is LinkEndCause.HANDLER_FAILED
    end = await links.agent.ended()
    assert end.cause is LinkEndCause.CLOSED_BY_PEER
    assert "failed on a Reply message (code 1011)" in end.sentence
    assert stream.closed
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage() for record in errors] == [
        "node n-test: the handler failed on a Reply message; the link is closed"
    ]


async def test_an_awaited_handler_holds_back_the_next_message(dial: "Dial") -> None:
    """Back-pressure by choice: a handler that is not done yet gets no second message."""
    links = await dial.links(run=False)
    links.agent.run()
    gate, seen = asyncio.Event(), asyncio.Queue[Message]()

    async def handle(message: Message) -> None:
        seen.put_nowait(message)
        await gate.wait()

    running = asyncio.create_task(links.coordinator.link.run(handle))
    await links.agent.link.send(Reply(1))
    await links.agent.link.send(Reply(2))
    assert await seen.get() == Reply(1)
    assert seen.empty()
    gate.set()
    assert await seen.get() == Reply(2)
    await links.coordinator.link.close()
    await running


async def test_an_unknown_message_is_dropped_and_logged_once(dial: "Dial", caplog: pytest.LogCaptureFixture) -> None:
    """A newer agent links to this coordinator."""
    end, raw = await dial.raw()
    end.run()
    for _ in range(3):
        await raw.send_bytes(msgpack.packb([250, "news"]))
    await raw.send_bytes(encode(Reply(1)))
    assert await end.wait_for(1) == [Reply(1)]
    assert [record.getMessage() for record in caplog.records if "250" in record.getMessage()] == [
        "node n-raw: frames of this type are dropped: unknown message type 250: "
        "the other side speaks a newer protocol; upgrade this side"
    ]


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (b"\xc1", "not msgpack"),
        (msgpack.packb([3, "seq", []]), "Heartbeat.seq"),
        (b"x" * (FRAME_BYTES_MAX + 1), "at most 16384"),
        (encode(StreamData(7, b"x")), "stream 7, which nobody opened"),
        (encode(StreamData(2, b"x")), "stream 2, which nobody opened"),
        (encode(Fragment(encode(StreamData(2, b"x")), last=True)), "StreamData in fragments"),
        (msgpack.packb([64, 2, "a", "o", [], 1]), "stream number 2 is out of order"),
        (msgpack.packb([64, 1, "a" * 600, "o", [], 1]), "out of bounds"),
        (msgpack.packb([64, 1, "a", "o", [], -1]), "out of bounds"),
    ],
)  # fmt: skip
async def test_a_side_that_breaks_the_protocol_is_told_and_cut_off(dial: "Dial", frame: bytes, sentence: str) -> None:
    """A compromised or faulty node."""
    end, raw = await dial.raw()
    end.run()
    await raw.send_bytes(frame)
    ended = await end.ended()
    assert ended.cause is LinkEndCause.PROTOCOL_ERROR
    assert sentence in ended.sentence
    closed = await raw.receive()
    assert (closed.type, closed.data) == (WSMsgType.CLOSE, aiohttp.WSCloseCode.PROTOCOL_ERROR)


async def test_fragments_without_end_are_cut_off(dial: "Dial") -> None:
    """A node sends pieces for ever and never the last."""
    end, raw = await dial.raw()
    end.run()
    piece = encode(Fragment(b"x" * 16_000, last=False))
    for _ in range(10_000):
        try:
            await raw.send_bytes(piece)
        except (aiohttp.ClientError, ConnectionError):
            break
    assert "fragments of more than" in (await end.ended()).sentence


async def test_text_frames_are_no_messages(dial: "Dial") -> None:
    """A browser, or a person with a WebSocket tool."""
    end, raw = await dial.raw()
    end.run()
    await raw.send_str("hello")
    ended = await end.ended()
    assert ended.cause is LinkEndCause.PROTOCOL_ERROR
    assert "TEXT" in ended.sentence


async def test_a_frame_beyond_what_the_websocket_takes_is_a_protocol_error(dial: "Dial") -> None:
    """A frame of a megabyte is refused before it is read."""
    end, raw = await dial.raw()
    end.run()
    await raw.send_bytes(b"x" * (1 << 20))
    assert (await end.ended()).cause is LinkEndCause.PROTOCOL_ERROR


async def test_what_was_sent_before_close_arrives_and_the_reason_too(dial: "Dial") -> None:
    """An agent says its last word and stops."""
    links = await dial.links()
    for seq in range(100):
        links.agent.link.send_nowait(Reply(seq, error="x" * 5000))
    await links.agent.link.close("the agent stops: " + "ä" * 200)
    assert len(await links.coordinator.wait_for(100)) == 100
    end = await links.coordinator.ended()
    assert end.cause is LinkEndCause.CLOSED_BY_PEER
    assert "the agent stops: ää" in end.sentence
    assert (await links.agent.ended()).cause is LinkEndCause.CLOSED_HERE


async def test_nothing_can_be_sent_after_the_end(dial: "Dial") -> None:
    """A caller kept the link of a node that went away."""
    links = await dial.links()
    await links.agent.link.close("bye")
    await links.coordinator.ended()
    for link in (links.agent.link, links.coordinator.link):
        with pytest.raises(LinkClosedError, match="bye"):
            await link.send(Reply(1))
        with pytest.raises(LinkClosedError):
            link.send_nowait(Reply(1))
        with pytest.raises(LinkClosedError):
            link.open_stream("ann", "sandbox/sb-a", [])
        with pytest.raises(LinkClosedError):
            await link.receive()
        await link.close("again")


async def test_a_broken_connection_ends_both_sides(dial: "Dial") -> None:
    """The agent was killed, or the line was cut."""
    links = await dial.links()
    stream = links.coordinator.link.open_stream("ann", "sandbox/sb-a", [])
    links.agent.link._drop_connection()
    for end in (links.coordinator, links.agent):
        assert (await end.ended()).cause is LinkEndCause.LOST
    assert stream.reset_error is not None
    assert "broke" in stream.reset_error


async def test_cancelling_run_drops_the_connection(dial: "Dial") -> None:
    """The process stops without time for a goodbye."""
    links = await dial.links()
    await links.coordinator.link.send(Reply(1))
    await links.agent.wait_for(1)
    assert links.agent.running is not None
    links.agent.running.cancel()
    assert (await links.coordinator.ended()).cause in {LinkEndCause.LOST, LinkEndCause.CLOSED_BY_PEER}
    assert links.agent.link.end is not None


async def test_a_side_that_takes_nothing_is_given_up(dial: "Dial") -> None:
    """A host is frozen: its connection stands, and what is sent to it would pile up."""
    end, _raw = await dial.raw(LinkConfig(send_timeout_s=0.3, send_queue_bytes_max=64 << 20))
    end.run()
    stream = end.link.open_stream("ann", "sandbox/sb-a", [])
    for _ in range(20):
        end.link.send_nowait(Reply(1, error=BIG))
    assert (await end.ended()).cause is LinkEndCause.STALLED
    assert stream.closed
    with pytest.raises(LinkClosedError, match="took nothing"):
        await end.link.send(Reply(2))


async def test_close_does_not_wait_for_a_frozen_side(dial: "Dial") -> None:
    """The coordinator stops while a host is frozen: it must stop in time."""
    end, _raw = await dial.raw(LinkConfig(send_queue_bytes_max=64 << 20))
    end.run()
    for _ in range(20):
        end.link.send_nowait(Reply(1, error=BIG))
    async with asyncio.timeout(5):
        await end.link.close("stop")
        assert (await end.ended()).cause is LinkEndCause.CLOSED_HERE


async def test_a_sender_that_waits_for_room_learns_the_end(dial: "Dial") -> None:
    """The queue was full when the line was cut."""
    end, _raw = await dial.raw(LinkConfig(send_queue_bytes_max=1000))
    end.run()
    waiting = asyncio.create_task(end.link.send(Reply(1)))
    while not end.link.queued_bytes > 1000:
        await end.link.send(Reply(1, error=BIG))
        await asyncio.sleep(0)
    waiting = asyncio.create_task(end.link.send(Reply(2)))
    await asyncio.sleep(0)
    await end.link.close("stop")
    with pytest.raises(LinkClosedError):
        await waiting


async def test_the_dialler_s_errors_name_the_address() -> None:
    """The coordinator is down."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    async with aiohttp.ClientSession() as session:
        with pytest.raises(LinkClosedError, match=r"cannot reach https://127\.0\.0\.1:1/x"):
            await connect_websocket(session, "https://127.0.0.1:1/x", ssl_context=context)


async def test_a_host_that_vanishes_is_noticed_by_the_kernel(dial: "Dial") -> None:
    """Power loss sends no farewell; TCP alone would retransmit for a quarter of an hour."""
    server, client = await dial.websockets()
    links = [Link(server, Side.COORDINATOR), Link(client, Side.AGENT, config=LinkConfig(send_timeout_s=5.0))]
    for websocket, timeout_ms in ((server, 30_000), (client, 5_000)):
        fileno = websocket.get_extra_info("socket").fileno()
        with socket.socket(fileno=os.dup(fileno)) as connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == timeout_ms
    await asyncio.gather(*(link.close() for link in links))


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_an_idle_link_costs_little_memory_on_uvloop(dial: "Dial") -> None:
    """Ten thousand agents link to one coordinator; on asyncio's own TLS each end of a link would cost 290 KiB."""
    await dial.links()
    gc.collect()
    before = psutil.Process().memory_info().rss
    pairs = [await dial.links() for _ in range(60)]
    gc.collect()
    grown_kib = (psutil.Process().memory_info().rss - before) / 1024
    assert grown_kib / len(pairs) < 250, "both ends of a link, and a server and a session for each"
