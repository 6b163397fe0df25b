"""A LinkStream as an asyncio.Transport, so that any asyncio protocol (aiohttp's, above all) runs inside a stream."""

import asyncio
from collections.abc import Callable
from typing import final

from kernpool_mesh.stream import LinkStream


@final
class LinkTransport(asyncio.Transport):
    """`get_extra_info("link_stream")` is the stream, so a handler finds who acts on what with which verbs."""

    def __init__(self, stream: LinkStream, protocol: asyncio.Protocol) -> None:
        """Attach `protocol` to `stream` and call its connection_made."""
        raise NotImplementedError


def serve_stream(stream: LinkStream, protocol_factory: Callable[[], asyncio.Protocol]) -> LinkTransport:
    """Run a server protocol on a stream that the other side opened.

    Agent: `link.on_stream(lambda s: serve_stream(s, runner.server))` with an aiohttp `web.AppRunner` after `setup()`.
    A handler reads `request.transport.get_extra_info("link_stream")`.
    """
    raise NotImplementedError
