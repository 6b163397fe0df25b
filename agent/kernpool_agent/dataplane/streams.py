"""The tunnelled door: streams that the coordinator opens in the link, served by the very same HTTP server.

The coordinator has authenticated the client and asked its authorize(); the stream's open frame says who acts, on what
object, with which verbs, and every request inside is checked against that (access.py).
"""

from typing import final

from kernpool_agent.dataplane.server import DataServer
from kernpool_mesh.stream import LinkStream
from kernpool_mesh.transport import serve_stream


@final
class StreamDoor:
    """Give its `serve` to `Link.on_stream`."""

    def __init__(self, server: DataServer) -> None:
        self._server = server

    def serve(self, stream: LinkStream) -> None:
        """Serve HTTP on a stream; it ends with the stream, the link or the server."""
        serve_stream(stream, self._server.protocol)
