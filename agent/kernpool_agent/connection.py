"""The agent's end of the link: dials the coordinator, greets, keeps the pulse, and dials again whatever happened.

    DIALLING --welcome--> LINKED --lost, refused, silent--> WAITING (jittered, growing) --> DIALLING

Work is never touched by what happens here: an outage of the coordinator only means that nobody is told for a while.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Protocol, final

import aiohttp

from kernpool_agent.backoff import Backoff
from kernpool_agent.clock import CoordinatorClock
from kernpool_agent.errors import AgentError, LinkRefusedError
from kernpool_agent.uplink import Uplink
from kernpool_mesh.errors import CodecError, LinkClosedError
from kernpool_mesh.link import Link, Side
from kernpool_mesh.messages import Heartbeat, HeartbeatAck, Hello, Message, Welcome
from kernpool_mesh.stream import LinkStream
from kernpool_mesh.websocket import connect_websocket

log = logging.getLogger(__name__)

SILENT_INTERVALS = 4
"""A link without an acknowledgement for so many heartbeats is given up."""
SILENT_S_MIN = 6.0
"""But not before this: a busy coordinator is not a dead one."""
STEADY_S = 5.0
"""A link that stood for less is a failure too: one that breaks after each greeting must not be dialled in a loop."""
HEARTBEAT_S_BOUNDS = (0.1, 60.0)
"""What a coordinator may ask for."""


class Host(Protocol):
    """Whose link this is: the supervisor."""

    def hello(self) -> Hello:
        """Return the first frame."""
        ...

    def heartbeat(self, seq: int) -> Heartbeat:
        """Return the next sign of life."""
        ...

    def on_linked(self, welcome: Welcome) -> None:
        """A coordinator welcomed us: tell it what is here."""
        ...

    def on_message(self, message: Message) -> None:
        """Take a message; returns at once."""
        ...

    def on_stream(self, stream: LinkStream) -> None:
        """Serve a stream that the coordinator opened."""
        ...


@final
class Pulse:
    """Heartbeats and their answers on one link, without I/O: how long it is silent and what the round trip was."""

    def __init__(self, interval_s: float, now: float) -> None:
        self.interval_s = min(max(interval_s, HEARTBEAT_S_BOUNDS[0]), HEARTBEAT_S_BOUNDS[1])
        self._seq = 0
        self._sent: dict[int, float] = {}
        """When each unanswered heartbeat was sent."""
        self._answered_at = now
        """When the last answer came (or the link began)."""

    def next_seq(self, now: float) -> int:
        """Note that a heartbeat goes out now and return its number."""
        self._seq += 1
        self._sent[self._seq] = now
        return self._seq

    def answered(self, seq: int, now: float) -> float | None:
        """Note an answer and return its round trip; None when it answers nothing we asked."""
        sent_at = self._sent.get(seq)
        if sent_at is None:
            return None
        self._answered_at = now
        self._sent = {s: t for s, t in self._sent.items() if s > seq}
        return now - sent_at

    def silent_s(self, now: float) -> float:
        """Return for how long nothing was answered although we asked."""
        return now - self._answered_at if self._sent else 0.0

    @property
    def silent_s_max(self) -> float:
        """Return the silence after which the link is given up."""
        return max(SILENT_S_MIN, SILENT_INTERVALS * self.interval_s)


@final
class Connection:
    """Keeps one link to the coordinator for as long as it runs."""

    def __init__(
        self,
        *,
        url: str,
        tls: Callable[[], Awaitable[ssl.SSLContext]],
        host: Host,
        uplink: Uplink,
        clock: CoordinatorClock,
        backoff: Backoff,
        dial_timeout_s: float,
        server_hostname: str | None = None,
    ) -> None:
        self._url = url
        """https://HOST:PORT of the coordinator's node listener."""
        self._tls = tls
        """Gives the client context for the next dial; renews an expired certificate first."""
        self._host = host
        self._uplink = uplink
        self._clock = clock
        self._backoff = backoff
        self._dial_timeout_s = dial_timeout_s
        self._server_hostname = server_hostname
        self._link: Link | None = None
        self._told = ""
        """The last reason that was logged: the same one is not told again at each try."""
        self.links = 0
        """Welcomes so far."""
        self.round_trip_s = 0.0
        """Of the last heartbeat."""

    async def run(self) -> None:
        """Keep linking until cancelled."""
        while True:
            try:
                why = await self._one_link()
            except (AgentError, LinkClosedError, CodecError, aiohttp.ClientError, OSError) as error:
                why = str(error) or type(error).__name__
            wait_s = self._backoff.next_s()
            if why != self._told:
                log.warning("no link to %s: %s; trying again", self._url, why)
                self._told = why
            await asyncio.sleep(wait_s)

    async def close(self, reason: str) -> None:
        """Say goodbye on the link that stands, if any."""
        if self._link is not None:
            await self._link.close(reason)

    async def _one_link(self) -> str:
        """Dial, greet and serve one link; returns how it ended."""
        context = await self._tls()
        async with aiohttp.ClientSession() as session:
            websocket = await connect_websocket(
                session,
                f"{self._url}/node/v1/link",
                ssl_context=context,
                server_hostname=self._server_hostname,
                timeout_s=self._dial_timeout_s,
            )
            link = Link(websocket, Side.AGENT, name=self._url)
            try:
                welcome = await self._greet(link)
                return await self._serve(link, welcome)
            finally:
                self._uplink.detach()
                self._link = None
                await link.close()

    async def _greet(self, link: Link) -> Welcome:
        asked_at = time.monotonic()
        await link.send(self._host.hello())
        try:
            async with asyncio.timeout(self._dial_timeout_s):
                welcome = await link.receive()
        except TimeoutError:
            raise LinkRefusedError(f"{self._url} took our greeting but did not answer it") from None
        if not isinstance(welcome, Welcome):
            raise LinkRefusedError(f"{self._url} answered our greeting with {type(welcome).__name__}")
        self._clock.learn(welcome.server_unix_s, time.monotonic() - asked_at)
        return welcome

    async def _serve(self, link: Link, welcome: Welcome) -> str:
        pulse = Pulse(welcome.heartbeat_interval_s, time.monotonic())
        link.on_stream(self._host.on_stream)
        self._link = link
        self._uplink.attach(link)
        self.links += 1
        self._told = ""
        linked_at = time.monotonic()
        log.info("linked to coordinator %s of cluster %s", welcome.coordinator_id, welcome.cluster_id)
        self._host.on_linked(welcome)
        beating = asyncio.create_task(self._beat(link, pulse), name="heartbeats")
        try:
            end = await link.run(lambda message: self._take(message, pulse))
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
            if time.monotonic() - linked_at > STEADY_S:
                self._backoff.succeeded()
        return end.sentence

    def _take(self, message: Message, pulse: Pulse) -> None:
        if not isinstance(message, HeartbeatAck):
            self._host.on_message(message)
            return
        round_trip_s = pulse.answered(message.seq, time.monotonic())
        if round_trip_s is not None:
            self.round_trip_s = round_trip_s
            self._clock.learn(message.server_unix_s, round_trip_s)

    async def _beat(self, link: Link, pulse: Pulse) -> None:
        while True:
            now = time.monotonic()
            if pulse.silent_s(now) > pulse.silent_s_max:
                await link.close(f"no answer to heartbeats for {pulse.silent_s(now):.1f} s")
                return
            self._uplink.tell(self._host.heartbeat(pulse.next_seq(now)))
            await asyncio.sleep(pulse.interval_s)
