"""Reads a request's body within its limits of size and time."""

import asyncio

from aiohttp.web import BaseRequest

from kernpool_coordinator.errors import InvalidError, TooLargeError
from kernpool_coordinator.http.problems import SlowBodyError


async def read(request: BaseRequest, *, bytes_max: int, wait_s: float) -> bytes:
    """The whole body; raises TooLargeError, SlowBodyError, InvalidError (compressed)."""
    if (length := request.content_length) is not None and length > bytes_max:
        raise _too_large(bytes_max)
    refuse_compressed(request)
    content = request.content
    if content.is_eof() and length is not None:  # it came along with the head: the usual case
        return await content.read()
    await send_continue(request)
    data = bytearray()
    try:
        async with asyncio.timeout(wait_s):
            while chunk := await content.readany():
                data += chunk
                if len(data) > bytes_max:
                    raise _too_large(bytes_max)
    except TimeoutError as error:
        raise SlowBodyError(f"The body did not come within {wait_s:g} s ({len(data)} bytes did).") from error
    return bytes(data)


def refuse_compressed(request: BaseRequest) -> None:
    """Raise InvalidError for a Content-Encoding: we would have to guess how far it swells."""
    if (encoding := request.headers.get("Content-Encoding", "identity")) != "identity":
        raise InvalidError(f"The body is sent with Content-Encoding `{encoding[:40]}`; send it as it is.")


async def send_continue(request: BaseRequest) -> None:
    """Tell a client that waits for it (`Expect: 100-continue`) to send its body."""
    if request.headers.get("Expect", "").lower() == "100-continue" and request.writer.output_size == 0:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # aiohttp takes a non-zero size for an answer that has begun.
        request.writer.output_size = 0


def _too_large(bytes_max: int) -> TooLargeError:
    return TooLargeError(
        f"The body is over {bytes_max} bytes.",
        hint="Put large files on the node by the files API, or raise `body_bytes_max` in the configuration.",
    )
