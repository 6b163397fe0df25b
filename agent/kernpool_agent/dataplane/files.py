"""/v1/sandboxes/{id}/files...: files of a sandbox, streamed, touched by kp-init's helper inside and never from here.

Paths are bytes: percent-encoded in the query, any byte but NUL. The helper resolves them inside the sandbox as the
asked user, so a link or `..` leads nowhere else.
"""

import asyncio
import os
import urllib.parse
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from kernpool_agent.dataplane.answers import StreamedAnswer, query_flag, query_int, stream_all
from kernpool_agent.dataplane.problems import ProblemError, invalid

if TYPE_CHECKING:
    from kernpool_agent.dataplane.plane import DataPlane
    from kernpool_sandbox.files import SandboxFiles
    from kernpool_sandbox.kpinit.plan import FileEntry

PATH_BYTES_MAX: Final = 4095
BODY_STALL_S: Final = 60.0
"""An upload that sends nothing for so long is given up."""
_SIZE_MAX: Final = 1 << 62
_MODE_MAX: Final = 0o7777


async def read_file(plane: "DataPlane", request: web.Request, sandbox_id: str) -> web.StreamResponse:
    """GET .../files?path=P[&offset=N][&limit=N]: the file's bytes."""
    path = query_path(request, "path")
    offset = query_int(request, "offset", 0, maximum=_SIZE_MAX)
    limit = query_int(request, "limit", 0, maximum=_SIZE_MAX) if "limit" in request.query else -1
    parts = _files(plane, request, sandbox_id).read(path, offset, limit)
    return await stream_all(StreamedAnswer(request, "application/octet-stream"), parts)


async def write_file(plane: "DataPlane", request: web.Request, sandbox_id: str) -> web.StreamResponse:
    """PUT .../files?path=P[&mode=OCTAL][&user=NAME]: the body becomes the file."""
    path = query_path(request, "path")
    mode = _query_mode(request)
    await _files(plane, request, sandbox_id).write(path, _body(request), mode)
    return web.Response(status=204)


async def remove_file(plane: "DataPlane", request: web.Request, sandbox_id: str) -> web.StreamResponse:
    """DELETE .../files?path=P[&recursive=1]: a file, an empty directory, or (recursive) a directory with all in it."""
    recursive = query_flag(request, "recursive")
    await _files(plane, request, sandbox_id).remove(query_path(request, "path"), recursive=recursive)
    return web.Response(status=204)


async def make_directory(plane: "DataPlane", request: web.Request, sandbox_id: str) -> web.StreamResponse:
    """POST .../files/mkdir?path=P: the directory and its missing parents."""
    await _files(plane, request, sandbox_id).mkdir(query_path(request, "path"))
    return web.Response(status=204)


async def move_file(plane: "DataPlane", request: web.Request, sandbox_id: str) -> web.StreamResponse:
    """POST .../files/move?path=P&to=Q: rename, replacing a file at Q."""
    await _files(plane, request, sandbox_id).move(query_path(request, "path"), query_path(request, "to"))
    return web.Response(status=204)


async def list_directory(plane: "DataPlane", request: web.Request, sandbox_id: str) -> web.StreamResponse:
    """GET .../files/list?path=P: {"entries": [...]}."""
    entries = await _files(plane, request, sandbox_id).list(query_path(request, "path"))
    return web.json_response({"entries": [_entry(entry) for entry in entries]})


async def stat_file(plane: "DataPlane", request: web.Request, sandbox_id: str) -> web.StreamResponse:
    """GET .../files/stat?path=P: one entry."""
    return web.json_response(_entry(await _files(plane, request, sandbox_id).stat(query_path(request, "path"))))


def _files(plane: "DataPlane", request: web.Request, sandbox_id: str) -> "SandboxFiles":
    files = plane.runtime.files(sandbox_id)
    user = request.query.get("user", "")
    return files.as_user(user) if user else files


def _entry(entry: "FileEntry") -> dict[str, Any]:
    return {
        "name": entry.name,
        "type": entry.type.value,
        "mode": entry.mode,
        "uid": entry.uid,
        "gid": entry.gid,
        "size": entry.size,
        "mtime_ns": entry.mtime_ns,
        "link": entry.link,
    }


def query_path(request: web.Request, name: str) -> str:
    """Read a path from the query, byte for byte (undecodable bytes as lone surrogates); raises ProblemError (400)."""
    # From the raw request line: a decoder that normalises would change names that are no UTF-8.
    _, _, query = request.raw_path.partition("?")
    values = urllib.parse.parse_qs(query, keep_blank_values=True, errors="surrogateescape", max_num_fields=16)
    text = values.get(name, [""])[0]
    if not text:
        raise invalid(f"the query parameter {name!r} is missing")
    if "\0" in text:
        raise invalid(f"{name}: a path holds no NUL byte")
    if len(os.fsencode(text)) > PATH_BYTES_MAX:
        raise invalid(f"{name}: longer than {PATH_BYTES_MAX} bytes")
    return text


def _query_mode(request: web.Request) -> int:
    text = request.query.get("mode", "644")
    try:
        mode = int(text, 8)
    except ValueError:
        raise invalid(f"mode: expected octal digits such as 644, not {text[:20]!r}") from None
    if not 0 <= mode <= _MODE_MAX:
        raise invalid(f"mode: expected at most 7777, not {text[:20]!r}")
    return mode


async def _body(request: web.Request) -> AsyncIterator[bytes]:
    content = request.content
    while True:
        try:
            async with asyncio.timeout(BODY_STALL_S):
                part = await content.readany()
        except TimeoutError:
            raise ProblemError(408, "timeout", f"the body stalled for {BODY_STALL_S:.0f} s") from None
        if not part:
            return
        yield part
