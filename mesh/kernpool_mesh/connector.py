"""An aiohttp client connector whose connections are streams of one link: HTTP and WebSocket to the agent's server."""

from collections.abc import Sequence
from typing import final

import aiohttp
from yarl import URL

from kernpool_mesh.link import Link


@final
class LinkConnector(aiohttp.BaseConnector):
    """One per link and ClientSession; kept-alive streams are shared only within the same (actor, object, verbs).

    `session.request("GET", connector.url(actor, object, verbs, "/v1/..."))`.
    """

    def __init__(self, link: Link, *, limit: int = 0, keepalive_timeout_s: float = 5.0) -> None:
        raise NotImplementedError

    def url(self, actor: str, object_: str, verbs: Sequence[str], path: str) -> URL:
        """The URL under which the session reaches `path` (may carry a query) of the agent with exactly these rights."""
        raise NotImplementedError
