"""An aiohttp client connector whose connections are streams of one link: HTTP and WebSocket to the agent's server."""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, final

import aiohttp
import msgpack
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from kernpool_mesh.errors import LinkError
from kernpool_mesh.link import Link
from kernpool_mesh.transport import LinkTransport

if TYPE_CHECKING:
    from aiohttp.client import ClientTimeout
    from aiohttp.client_reqrep import ClientRequest
    from aiohttp.tracing import Trace

SCOPES_MAX: Final = 4096
_Scope = tuple[str, str, tuple[str, ...]]


@final
class LinkConnector(aiohttp.BaseConnector):
    """One per link and ClientSession; kept-alive streams are shared only within the same (actor, object, verbs).

    `session.request("GET", connector.url(actor, object, verbs, "/v1/..."))`. The rights become the host name of the
    URL, so aiohttp's own pool keeps streams of different rights apart.
    """

    def __init__(self, link: Link, *, limit: int = 0, keepalive_timeout_s: float = 5.0) -> None:
        super().__init__(limit=limit, keepalive_timeout=keepalive_timeout_s)
        self._link = link
        self._scopes: OrderedDict[str, _Scope] = OrderedDict()
        """Host name -> rights, the least recently used first."""

    def url(self, actor: str, object_: str, verbs: Sequence[str], path: str) -> URL:
        """The URL of `path` (encoded; may carry a query) on the agent's server, under exactly these rights."""
        scope = (actor, object_, tuple(verbs))
        host = hashlib.blake2b(msgpack.packb(scope), digest_size=16).hexdigest() + ".link"
        self._scopes[host] = scope
        self._scopes.move_to_end(host)
        if len(self._scopes) > SCOPES_MAX:
            self._scopes.popitem(last=False)
        return URL(f"http://{host}{path}", encoded=True)

    async def _create_connection(
        self, req: "ClientRequest", traces: "list[Trace]", timeout: "ClientTimeout"
    ) -> ResponseHandler:
        scope = self._scopes.get(req.url.raw_host or "")
        if scope is None:
            raise aiohttp.ClientConnectionError(f"{req.url.raw_host} is no address on a link; make it with url()")
        actor, object_, verbs = scope
        if self._link.streams_nearly_full:
            self._close_idle()
        try:
            stream = self._link.open_stream(actor, object_, verbs)
        except LinkError as error:
            raise aiohttp.ClientConnectionError(str(error)) from error
        protocol: ResponseHandler = self._factory()
        LinkTransport(stream, protocol)
        return protocol

    def _close_idle(self) -> None:
        """Streams kept alive for a next request must not stand in the way of this one."""
        for waiting in self._conns.values():
            for protocol, _since in waiting:
                protocol.close()
        self._conns.clear()
