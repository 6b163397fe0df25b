"""POST /v1/sandboxes/{id}/exec: run one command and stream its output as NDJSON, one object a line, the end last."""

import asyncio
import binascii
import json
from typing import TYPE_CHECKING, Final

from aiohttp import web

from kernpool_agent.dataplane.answers import StreamedAnswer
from kernpool_agent.dataplane.bodies import command_from_json, result_to_json
from kernpool_agent.dataplane.problems import ProblemError, too_large
from kernpool_agent.dataplane.tasks import together
from kernpool_mesh.messages import CommandResult

if TYPE_CHECKING:
    from kernpool_agent.dataplane.plane import DataPlane
    from kernpool_sandbox.pipes import Chunks

BODY_TIMEOUT_S: Final = 30.0
CONTENT_TYPE: Final = "application/x-ndjson"


async def exec_stream(plane: "DataPlane", request: web.Request, sandbox_id: str) -> web.StreamResponse:
    """Run the command of the body; the client gone, it is killed."""
    command = command_from_json(await _body(request))
    async with plane.foreground.run(sandbox_id, command, stdin=False) as process:
        answer = StreamedAnswer(request, CONTENT_TYPE)
        await together(_pump(answer, b"stdout", process.stdout), _pump(answer, b"stderr", process.stderr))
        result = await process.wait()
    return await answer.finish(exit_line(result))


async def _body(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await request.read()
    except TimeoutError:
        raise ProblemError(408, "timeout", f"the body did not come within {BODY_TIMEOUT_S:.0f} s") from None
    except web.HTTPRequestEntityTooLarge:
        raise too_large("the body is too large; send long stdin through the WebSocket form") from None


async def _pump(answer: StreamedAnswer, name: bytes, chunks: "Chunks") -> None:
    while data := await chunks.read():
        await answer.write(output_line(name, data))


def output_line(name: bytes, data: bytes) -> bytes:
    """Give the NDJSON line of some output; made by hand, since it is the hot path of every exec."""
    return b'{"stream":"%b","data_b64":"%b"}\n' % (name, binascii.b2a_base64(data, newline=False))


def exit_line(result: CommandResult) -> bytes:
    """Give the last NDJSON line."""
    return json.dumps({"exit": result_to_json(result)}, separators=(",", ":")).encode() + b"\n"
