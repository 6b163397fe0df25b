"""HTTP and WebSockets of a real aiohttp application inside the streams of a link."""

import asyncio
import resource
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web

from kernpool_mesh.connector import LinkConnector
from kernpool_mesh.link import Link, LinkConfig
from kernpool_mesh.messages import Reply
from kernpool_mesh.stream import LinkStream
from kernpool_mesh.transport import LinkTransport, serve_stream, stream_of

if TYPE_CHECKING:
    from tests.mesh.conftest import Dial, Links, Until

MIB = 1 << 20
BODY_BYTES = 50 * MIB
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Tunnel:
    """An aiohttp application on the agent's side of a link and a client session on the coordinator's."""

    def __init__(self, links: "Links", session: aiohttp.ClientSession, connector: LinkConnector) -> None:
        self.links = links
        self.session = session
        self.streams: list[LinkStream] = []
        self._connector = connector

    def url(self, path: str, *, actor: str = "ann", object_: str = "sandbox/sb-a") -> Any:
        return self._connector.url(actor, object_, ["exec"], path)

    def no_streams_left(self) -> bool:
        return not (self.links.coordinator.link.streams_open or self.links.agent.link.streams_open)


@asynccontextmanager
async def tunnel(dial: "Dial", routes: dict[str, Handler], config: LinkConfig | None = None) -> AsyncIterator[Tunnel]:
    links = await dial.links(config)
    app = web.Application(client_max_size=1 << 40)
    for path, handler in routes.items():
        app.router.add_route("*", path, handler)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    connector = LinkConnector(links.coordinator.link)
    async with aiohttp.ClientSession(connector=connector) as session:
        made = Tunnel(links, session, connector)

        def accept(stream: LinkStream) -> None:
            assert runner.server is not None
            made.streams.append(stream)
            serve_stream(stream, runner.server)

        links.agent.link.on_stream(accept)
        yield made
    await runner.cleanup()


async def whoami(request: web.Request) -> web.Response:
    stream = stream_of(request.transport)
    assert stream is not None
    return web.json_response([stream.actor, stream.object, list(stream.verbs), await request.text()])


async def test_a_request_goes_through_and_carries_its_rights(dial: "Dial") -> None:
    """`kernpool sandbox exec` through the coordinator."""
    async with tunnel(dial, {"/who": whoami}) as through:
        response = await through.session.post(through.url("/who?x=1"), data="hello")
        assert response.status == 200
        assert await response.json() == ["ann", "sandbox/sb-a", ["exec"], "hello"]


async def test_streams_are_reused_within_the_same_rights_only(dial: "Dial") -> None:
    """Ann's kept-alive stream must never carry Bob's request."""
    async with tunnel(dial, {"/who": whoami}) as through:
        for actor in ("ann", "ann", "bob", "ann", "bob"):
            async with through.session.get(through.url("/who", actor=actor)) as response:
                assert (await response.json())[0] == actor
        assert [stream.actor for stream in through.streams] == ["ann", "bob"]


async def test_an_address_that_was_not_made_with_url_is_refused(dial: "Dial") -> None:
    """A session over a link must not be talked into another host."""
    async with tunnel(dial, {}) as through:
        with pytest.raises(aiohttp.ClientConnectionError, match="no address on a link"):
            await through.session.get("http://example.org/")


async def test_240_requests_at_once(dial: "Dial") -> None:
    """The SDK runs a command in each of 240 sandboxes."""
    async with tunnel(dial, {"/who": whoami}) as through:

        async def ask(number: int) -> str:
            url = through.url("/who", object_=f"sandbox/sb-{number}")
            async with through.session.get(url) as response:
                return str((await response.json())[1])

        answers = await asyncio.gather(*(ask(number) for number in range(240)))
        assert answers == [f"sandbox/sb-{number}" for number in range(240)]


async def test_idle_streams_make_room_for_new_ones(dial: "Dial") -> None:
    """A thousand sandboxes are touched one after the other: kept-alive streams must not use the link up."""
    async with tunnel(dial, {"/who": whoami}, LinkConfig(streams_max=16)) as through:
        for number in range(64):
            async with through.session.get(through.url("/who", object_=f"sandbox/sb-{number}")) as response:
                assert response.status == 200


def peak_rss_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def test_a_body_of_50_mb_each_way_needs_little_memory(dial: "Dial") -> None:
    """A file goes into a sandbox and comes out again."""
    received = 0

    async def take(request: web.Request) -> web.Response:
        nonlocal received
        async for chunk in request.content.iter_any():
            received += len(chunk)
        return web.Response()

    async def give(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(BODY_BYTES // MIB):
            await response.write(b"x" * MIB)
        return response

    async def body() -> AsyncIterator[bytes]:
        for _ in range(BODY_BYTES // MIB):
            yield b"x" * MIB

    async with tunnel(dial, {"/take": take, "/give": give}) as through:
        await (await through.session.get(through.url("/missing"))).read()
        before = peak_rss_bytes()
        async with through.session.put(through.url("/take"), data=body()) as response:
            assert response.status == 200
        assert received == BODY_BYTES
        async with through.session.get(through.url("/give")) as response:
            got = 0
            async for chunk in response.content.iter_any():
                got += len(chunk)
            assert got == BODY_BYTES
        assert peak_rss_bytes() - before < 24 * MIB


async def test_a_slow_client_slows_the_server_down(dial: "Dial") -> None:
    """`kernpool logs` is piped into `less`: the agent must wait, not buffer."""
    written = 0
    stalled = asyncio.Event()

    async def give(request: web.Request) -> web.StreamResponse:
        nonlocal written
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            try:
                async with asyncio.timeout(0.5):
                    await response.write(b"x" * 65536)
            except TimeoutError:
                stalled.set()
                return response
            written += 65536

    async with tunnel(dial, {"/give": give}) as through:
        response = await through.session.get(through.url("/give"))
        await stalled.wait()
        assert 256 * 1024 <= written < 2 * MIB
        response.close()


async def test_a_client_that_goes_away_ends_the_handler(dial: "Dial", until: "Until") -> None:
    """Ctrl-C during `logs -f`: the agent's handler must not follow the log for ever."""
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def follow(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"line\n")
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return response

    async with tunnel(dial, {"/follow": follow}) as through:
        response = await through.session.get(through.url("/follow"))
        assert await response.content.readline() == b"line\n"
        await started.wait()
        response.close()
        await cancelled.wait()
        await until(through.no_streams_left)


async def test_a_client_that_goes_away_in_the_midst_of_a_download_ends_it(dial: "Dial", until: "Until") -> None:
    """The same while bytes flow: they are refused, and nothing of the stream stays."""
    ended = asyncio.Event()

    async def give(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b"x" * 65536)
        finally:
            ended.set()

    async with tunnel(dial, {"/give": give}) as through:
        response = await through.session.get(through.url("/give"))
        await response.content.readexactly(1_000_000)
        response.close()
        await ended.wait()
        await until(through.no_streams_left)


async def test_a_handler_that_fails_answers_500_and_the_link_goes_on(dial: "Dial") -> None:
    """A bug in the data plane."""

    async def fail(_request: web.Request) -> web.Response:
        raise KeyError("bug")

    async with tunnel(dial, {"/fail": fail, "/who": whoami}) as through:
        async with through.session.get(through.url("/fail")) as response:
            assert response.status == 500
        async with through.session.get(through.url("/who")) as response:
            assert response.status == 200


async def test_a_websocket_runs_inside_a_stream(dial: "Dial", until: "Until") -> None:
    """An interactive exec through the coordinator."""
    closed: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    async def talk(request: web.Request) -> web.WebSocketResponse:
        websocket = web.WebSocketResponse()
        await websocket.prepare(request)
        async for frame in websocket:
            await websocket.send_bytes(frame.data)
        closed.set_result(websocket.close_code)
        return websocket

    async with tunnel(dial, {"/talk": talk}) as through:
        async with through.session.ws_connect(through.url("/talk")) as websocket:
            for size in (0, 1, 125, 126, 65_535, 65_536, 3 * MIB):
                await websocket.send_bytes(b"x" * size)
                assert len(await websocket.receive_bytes()) == size
        assert await closed == aiohttp.WSCloseCode.OK
        await until(through.no_streams_left)


async def test_a_request_under_way_fails_when_the_link_breaks(dial: "Dial") -> None:
    """The node loses power in the midst of an exec: the client must learn it at once."""
    arrived = asyncio.Event()

    async def hang(_request: web.Request) -> web.Response:
        arrived.set()
        await asyncio.Event().wait()
        return web.Response()

    async with tunnel(dial, {"/hang": hang}) as through:
        asking = asyncio.create_task(through.session.get(through.url("/hang")))
        await arrived.wait()
        through.links.agent.link._drop_connection()
        with pytest.raises(aiohttp.ClientError):
            await asking
        with pytest.raises(aiohttp.ClientConnectionError, match="broke"):
            await through.session.get(through.url("/hang"))


async def test_a_refused_stream_is_a_client_error(dial: "Dial") -> None:
    """An agent without a data plane."""
    links = await dial.links()
    connector = LinkConnector(links.coordinator.link)
    async with aiohttp.ClientSession(connector=connector) as session:
        with pytest.raises(aiohttp.ClientError, match="serves no streams"):
            await session.get(connector.url("ann", "o", [], "/"))


class Recorder(asyncio.Protocol):
    """A protocol that notes what its transport tells it."""

    def __init__(self, *, keep_open: bool = False) -> None:
        self.events: list[str] = []
        self.data = b""
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.paused = asyncio.Event()
        self.resumed = asyncio.Event()
        self.got_eof = asyncio.Event()
        self.transport: LinkTransport | None = None
        self._keep_open = keep_open

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, LinkTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        if data == b"fail":
            raise KeyError("bug")

    def eof_received(self) -> bool:
        self.got_eof.set()
        return self._keep_open

    def pause_writing(self) -> None:
        self.paused.set()

    def resume_writing(self) -> None:
        self.resumed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


async def transports(dial: "Dial", *, keep_open: bool = False) -> tuple[Recorder, Recorder, Link]:
    """Two protocols that are connected by a stream, and the link of the first."""
    links = await dial.links()
    served: asyncio.Future[Recorder] = asyncio.get_running_loop().create_future()

    def accept(stream: LinkStream) -> None:
        far = Recorder(keep_open=keep_open)
        serve_stream(stream, lambda: far)
        served.set_result(far)

    links.agent.link.on_stream(accept)
    near = Recorder(keep_open=keep_open)
    LinkTransport(links.coordinator.link.open_stream("ann", "o", []), near)
    return near, await served, links.coordinator.link


def of(protocol: Recorder) -> LinkTransport:
    assert protocol.transport is not None
    return protocol.transport


async def test_close_sends_what_is_queued_first(dial: "Dial") -> None:
    """A server answers and closes."""
    near, far, _link = await transports(dial)
    of(near).write(b"x" * 200_000)
    of(near).writelines([b"a", b"b"])
    of(near).close()
    assert of(near).is_closing()
    assert await near.lost is None
    assert await far.lost is None
    assert far.data == b"x" * 200_000 + b"ab"


async def test_abort_resets(dial: "Dial") -> None:
    """A client gives up."""
    near, far, link = await transports(dial)
    of(near).write(b"x" * 200_000)
    of(near).abort()
    assert await near.lost is None
    assert isinstance(await far.lost, ConnectionResetError)
    assert link.streams_open == 0


async def test_half_close_through_transports(dial: "Dial") -> None:
    """A protocol that reads its request to the end and answers then."""
    near, far, _link = await transports(dial, keep_open=True)
    assert of(near).can_write_eof()
    of(near).write(b"question")
    of(near).write_eof()
    await far.got_eof.wait()
    assert far.data == b"question"
    of(far).write(b"answer")
    of(far).write_eof()
    await near.got_eof.wait()
    assert near.data == b"answer"
    of(near).close()
    of(far).close()
    assert (await near.lost, await far.lost) == (None, None)


async def test_paused_reading_holds_bytes_and_the_end_back(dial: "Dial", until: "Until") -> None:
    """A protocol that cannot take more."""
    near, far, link = await transports(dial)
    of(far).pause_reading()
    of(near).write(b"x" * 100_000)
    of(near).write_eof()
    await link.send(Reply(1))
    await until(lambda: of(far)._eof_pending)
    assert far.data == b""
    of(far).resume_reading()
    await far.got_eof.wait()
    assert len(far.data) == 100_000


async def test_writing_pauses_above_the_high_water_mark_and_resumes_below_the_low_one(dial: "Dial") -> None:
    """Back-pressure of a protocol."""
    near, far, _link = await transports(dial)
    of(near).set_write_buffer_limits(high=100_000)
    assert of(near).get_write_buffer_limits() == (25_000, 100_000)
    of(far).pause_reading()
    of(near).write(b"x" * 100_000)
    assert not near.paused.is_set()
    of(near).write(b"x" * 300_000)
    assert near.paused.is_set()
    assert of(near).get_write_buffer_size() == 400_000
    assert not near.resumed.is_set()
    of(far).resume_reading()
    await near.resumed.wait()
    with pytest.raises(ValueError, match="must be >="):
        of(near).set_write_buffer_limits(high=1, low=2)


async def test_a_failing_protocol_costs_its_stream_only(dial: "Dial") -> None:
    """A bug in a parser, met by a hostile client."""
    near, far, link = await transports(dial)
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context))
    of(near).write(b"fail")
    assert isinstance(await near.lost, ConnectionResetError)
    assert isinstance(await far.lost, KeyError)
    assert [type(context["exception"]) for context in told] == [KeyError]
    assert link.end is None


async def test_writing_to_a_closing_transport_is_ignored(dial: "Dial") -> None:
    """As with any asyncio transport."""
    near, far, _link = await transports(dial)
    of(near).close()
    of(near).write(b"late")
    of(near).close()
    of(near).write_eof()
    assert await far.lost is None
    assert far.data == b""


async def test_bytes_after_this_side_closed_are_refused(dial: "Dial") -> None:
    """The other side goes on sending after this side has gone."""
    near, far, link = await transports(dial, keep_open=True)
    of(near).close()
    await far.got_eof.wait()
    of(far).write(b"still there?")
    assert isinstance(await far.lost, ConnectionResetError)
    assert link.streams_open == 0
