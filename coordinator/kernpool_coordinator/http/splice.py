"""Joins an upgraded client connection and an upgraded stream to a node: raw bytes both ways, with back-pressure.

The coordinator reads no WebSocket frame: what a client sends (masked) is what the node's server expects, so pings,
closes, extensions and limits are between those two.
"""

import asyncio
from typing import final

from aiohttp.web import BaseRequest

from kernpool_coordinator.http.connection import Connection
from kernpool_coordinator.nodeside.nodehttp import NodeConnection


@final
class Splice:
    """Runs until either side ends; then whoever waits for `done` closes both."""

    __slots__ = ("_client", "_node", "done")

    def __init__(self, client: Connection, node: NodeConnection) -> None:
        self._client = client
        self._node = node
        self.done = asyncio.get_running_loop().create_future()
        """Set once one side has ended; holds nothing."""

    def start(self) -> None:
        """Join them; what either side has sent already goes first."""
        self._client.flow = _Valve(self._node)
        self._node.flow = _Valve(self._client)
        self._node.set_parser(_Pipe(self._client, self), _NO_PAYLOAD)
        self._client.set_parser(_Pipe(self._node, self))  # type: ignore[arg-type]

    def stop(self) -> None:
        """Unhook; the transports are closed by their owners."""
        self._client.flow = None
        self._node.flow = None

    def ended(self) -> None:
        """One side is over."""
        if not self.done.done():
            self.done.set_result(None)


async def run(request: BaseRequest, node: NodeConnection) -> None:
    """Relay until one side ends; closes the node's side after what was on its way."""
    client = request.protocol
    assert isinstance(client, Connection)
    client.keep_alive(val=False)
    splice = Splice(client, node)
    try:
        splice.start()
        await splice.done
    finally:
        splice.stop()
        node.close()


@final
class _Pipe:
    """Stands where aiohttp puts its WebSocket parser: hands every byte on."""

    __slots__ = ("_splice", "_to")

    def __init__(self, to: Connection | NodeConnection, splice: Splice) -> None:
        self._to = to
        self._splice = splice

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Bytes came."""
        transport = self._to.transport
        if transport is None or transport.is_closing():
            self._splice.ended()
        else:
            transport.write(data)
        return False, b""

    def feed_eof(self) -> None:
        """This side is gone."""
        self._splice.ended()


@final
class _Valve:
    """Stops the reading of one side while the buffers of the other are full."""

    __slots__ = ("_source",)

    def __init__(self, source: Connection | NodeConnection) -> None:
        self._source = source

    def peer_full(self) -> None:
        """Stop reading."""
        transport = self._source.transport
        if transport is not None and not transport.is_closing():
            transport.pause_reading()

    def peer_ready(self) -> None:
        """Go on reading."""
        transport = self._source.transport
        if transport is not None and not transport.is_closing():
            transport.resume_reading()


@final
class _NoPayload:
    """What aiohttp's client protocol calls the payload of an upgraded answer; it has none."""

    def is_eof(self) -> bool:
        """It has ended before it began."""
        return True

    def set_exception(self, *_: object) -> None:
        """Nobody reads it."""


_NO_PAYLOAD = _NoPayload()
