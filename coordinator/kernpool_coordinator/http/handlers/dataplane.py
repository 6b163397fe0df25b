"""Everything inside a sandbox (exec, files, ports), relayed to its node's data plane."""

from typing import Final
from urllib.parse import quote

from aiohttp.web import StreamResponse
from pydantic import BaseModel

from kernpool.bodies import CommandBody
from kernpool_coordinator.errors import InvalidError
from kernpool_coordinator.http.relay import relay
from kernpool_coordinator.http.route import Call, Handler, Media, QueryModel, Route
from kernpool_coordinator.nodeside.nodehttp import Grant
from kernpool_coordinator.tokens.actor import Verb


class PathQuery(QueryModel):
    """Which file."""

    path: str


class ReadQuery(PathQuery):
    """Which part of a file."""

    offset: int = 0
    limit: int = 0


class WriteQuery(PathQuery):
    """How a file is written."""

    mode: str = ""
    user: str = ""


class MoveQuery(PathQuery):
    """From `path` to `to`."""

    to: str


def _relayed(tail: str, verb: str) -> Handler:
    """A handler that relays to `/v1/sandboxes/{id}` + `tail` with exactly one verb of the data plane."""

    async def handler(call: Call[None, None]) -> StreamResponse:
        sandbox_id = call.path["sandbox"]
        node_id = call.api.core.sandbox_node(sandbox_id)
        target = f"/v1/sandboxes/{quote(sandbox_id, safe='')}{tail}"
        if "port" in call.path:
            target += _port(call.path["port"])
        if query := call.request.rel_url.raw_query_string:
            target += f"?{query}"
        grant = Grant(call.actor.name, f"sandbox/{sandbox_id}", (verb,))
        # The node's own answer tells how it went; hanging up ends it, as a direct client's hang-up would.
        with call.api.endless(call.request):
            return await relay(call.api, call.request, node_id, grant, target)

    return handler


def _port(text: str) -> str:
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:6]) < 65_536):
        raise InvalidError(f"`{text[:20]}` is no port, expected 1 to 65535.")
    return text


_ONE: Final = "/api/v1/sandboxes/{sandbox}"


def _route(
    method: str,
    tail: str,
    verb: str,
    summary: str,
    *,
    query: type[QueryModel] | None = None,
    body: type[BaseModel] | None = None,
    media: Media = Media.JSON,
    takes_bytes: bool = False,
) -> Route:
    node_tail = tail.partition("{")[0]
    return Route(
        method=method, path=_ONE + tail, handler=_relayed(node_tail, verb), verb=Verb.EXEC, kind="sandbox",
        key="sandbox",
        query=query, body=body, media=media, long=True, raw=True, takes_bytes=takes_bytes, summary=summary,
    )  # fmt: skip


ROUTES: Final = (
    _route(
        "POST", "/exec", "exec", "Run a command; output and exit come as NDJSON.", body=CommandBody, media=Media.NDJSON
    ),
    _route("GET", "/exec", "exec", "Run a command with live stdin over a WebSocket.", media=Media.WEBSOCKET),
    _route("GET", "/files", "read", "Read a file.", query=ReadQuery, media=Media.BYTES),
    _route("PUT", "/files", "write", "Write a file; the body is its content.", query=WriteQuery, takes_bytes=True),
    _route("DELETE", "/files", "write", "Remove a file or directory.", query=PathQuery),
    _route("POST", "/files/mkdir", "write", "Make a directory and those above it.", query=PathQuery),
    _route("POST", "/files/move", "write", "Move a file or directory.", query=MoveQuery),
    _route("GET", "/files/list", "read", "List a directory.", query=PathQuery),
    _route("GET", "/files/stat", "read", "Show one file's metadata.", query=PathQuery),
    _route(
        "GET",
        "/ports/{port}",
        "connect",
        "One TCP connection to a port inside, over a WebSocket.",
        media=Media.WEBSOCKET,
    ),
)
