"""GET /metrics on the node's own listener: for a token with the verb `metrics` on the node, or from the node itself."""

import ipaddress
from collections.abc import Awaitable, Callable

from aiohttp import web

from kernpool_agent.dataplane.access import Authorizer, Verb, check
from kernpool_agent.dataplane.problems import ProblemError
from kernpool_mesh.transport import stream_of

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def handler(
    metrics_text: Callable[[], bytes], authorizer: Authorizer, node_id: str
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Make the handler that gives `metrics_text()`."""

    async def serve(request: web.Request) -> web.StreamResponse:
        try:
            if not _from_this_machine(request):
                check(authorizer(request), Verb.METRICS, f"node/{node_id}")
        except ProblemError as problem:
            return problem.response()
        return web.Response(body=metrics_text(), headers={"Content-Type": CONTENT_TYPE})

    return serve


def _from_this_machine(request: web.Request) -> bool:
    if request.transport is None or stream_of(request.transport) is not None:
        return False
    peer = request.transport.get_extra_info("peername")
    return isinstance(peer, tuple) and ipaddress.ip_address(str(peer[0]).partition("%")[0]).is_loopback
