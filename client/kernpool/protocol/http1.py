"""HTTP/1.1 as a client speaks it, without I/O: bytes of a request out, bytes of an answer in.

Why not http.client: it costs 20 ms of CPU to import (the email package) and 0.1 ms a request, it cannot wait for the
next bytes with a deadline and go on afterwards, and it has no way to hand over the bytes behind a 101 answer.
"""

from collections.abc import Sequence
from typing import Final, final

HEAD_BYTES_MAX: Final = 64 * 1024
CHUNK_LINE_BYTES_MAX: Final = 1024
TRAILER_BYTES_MAX: Final = 16 * 1024

Headers = Sequence[tuple[str, str]]


class HttpError(Exception):
    """The peer does not speak HTTP/1.1 as we understand it, or stopped in the middle."""


def request_head(method: str, target: str, headers: Headers) -> bytes:
    """Write the request line and the headers. Raises ValueError for a value that would break out of its line."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    for line in lines:
        if not line.isascii() or "\r" in line or "\n" in line or "\0" in line:
            raise ValueError(f"the request's {line.split(':')[0].split(' ')[0]} has characters that HTTP forbids")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


def chunk(data: bytes) -> bytes:
    """Frame one piece of a chunked request body; the empty piece ends it."""
    return b"%x\r\n%b\r\n" % (len(data), data)


@final
class AnswerReader:
    """Takes the bytes of one answer as they come and gives its status, headers and body."""

    __slots__ = ("_buffer", "_left", "_pieces", "_step", "ended", "headers", "keep_alive", "status")

    def __init__(self) -> None:
        self.status = 0
        """0 until the head is there."""
        self.headers: dict[str, str] = {}
        """Names in lower case; of a repeated one the last counts."""
        self.ended = False
        """The whole body is there (or was taken)."""
        self.keep_alive = False
        """The connection may carry another request once this answer has ended."""
        self._buffer = bytearray()
        """Bytes not understood yet; after a 101 head: the first bytes of the other protocol."""
        self._pieces: list[bytes] = []
        self._left = 0
        """Bytes missing of the fixed body or of the current chunk."""
        self._step = "head"

    def feed(self, data: bytes) -> None:
        """Take the next bytes. Raises HttpError."""
        if self._step == "fixed" and not self._buffer and len(data) <= self._left:
            self._take_body(data)  # the common case of a long body: no copy
            return
        self._buffer += data
        while self._advance():
            pass

    def feed_eof(self) -> None:
        """Learn that the peer has closed. Raises HttpError when the answer is not whole."""
        if self._step == "until_eof":
            self.ended, self._step = True, "done"
        elif not self.ended:
            raise HttpError("the connection was closed in the middle of the answer" if self.status else "no answer")

    def take_body(self) -> bytes:
        """Give the body bytes that came since the last call."""
        if len(self._pieces) == 1:
            return self._pieces.pop()
        body = b"".join(self._pieces)
        self._pieces.clear()
        return body

    def take_rest(self) -> bytes:
        """Give what follows a 101 head: it belongs to the other protocol."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest

    def _advance(self) -> bool:
        """Understand one more thing of the buffer; False when that needs more bytes."""
        match self._step:
            case "head":
                return self._read_head()
            case "fixed":
                return self._read_fixed()
            case "chunk_size":
                return self._read_chunk_size()
            case "chunk":
                return self._read_chunk()
            case "trailers":
                return self._read_trailers()
            case "until_eof":
                self._take_all()
                return False
            case "upgraded":
                return False
            case _:
                if self._buffer:
                    raise HttpError("the peer sent more than its answer")
                return False

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0 or end > HEAD_BYTES_MAX:
            if len(self._buffer) > HEAD_BYTES_MAX:
                raise HttpError(f"the head of the answer is longer than {HEAD_BYTES_MAX} bytes")
            if len(self._buffer) >= 5 and not self._buffer.startswith(b"HTTP/"):
                raise HttpError("the peer does not speak HTTP")
            return False
        lines = self._buffer[:end].decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        status = _status(lines[0])
        headers = dict(map(_header, lines[1:]))
        if 100 <= status < 200 and status != 101:
            return True
        self.status, self.headers = status, headers
        self._start_body(is_1_1=lines[0].startswith("HTTP/1.1"))
        return True

    def _start_body(self, *, is_1_1: bool) -> None:
        """Find out from the head how the body ends (RFC 9112, section 6.3)."""
        connection = self.headers.get("connection", "").lower()
        self.keep_alive = "close" not in connection if is_1_1 else "keep-alive" in connection
        coding = self.headers.get("transfer-encoding", "").lower()
        if self.status == 101:
            self._step, self.keep_alive = "upgraded", False
        elif self.status in (204, 304):
            self._finish()
        elif coding:
            if coding != "chunked":
                raise HttpError(f"the answer has the unknown transfer coding {coding!r}")
            self._step = "chunk_size"
        elif "content-length" in self.headers:
            self._left = _length(self.headers["content-length"])
            self._step = "fixed"
            if not self._left:
                self._finish()
        else:
            self._step, self.keep_alive = "until_eof", False

    def _take_body(self, data: bytes) -> None:
        self._left -= len(data)
        if data:
            self._pieces.append(data)
        if not self._left:
            self._finish()

    def _finish(self) -> None:
        self.ended, self._step = True, "done"

    def _read_fixed(self) -> bool:
        data = bytes(self._buffer[: self._left])
        del self._buffer[: len(data)]
        self._take_body(data)
        return self.ended and bool(self._buffer)

    def _take_all(self) -> None:
        if self._buffer:
            self._pieces.append(bytes(self._buffer))
            self._buffer.clear()

    def _read_chunk_size(self) -> bool:
        line = self._line(CHUNK_LINE_BYTES_MAX)
        if line is None:
            return False
        digits = line.split(b";", 1)[0].strip()
        if not digits or len(digits) > 15 or digits.strip(b"0123456789abcdefABCDEF"):
            raise HttpError("a chunk of the answer has no valid size")
        self._left = int(digits, 16)
        self._step = "chunk" if self._left else "trailers"
        return True

    def _read_chunk(self) -> bool:
        """Give out what is there of a chunk: a slow producer's bytes do not wait for the chunk's end."""
        data = bytes(self._buffer[: self._left])
        if data:
            del self._buffer[: len(data)]
            self._left -= len(data)
            self._pieces.append(data)
        if self._left or len(self._buffer) < 2:
            return False
        if self._buffer[:2] != b"\r\n":
            raise HttpError("a chunk of the answer is longer than it said")
        del self._buffer[:2]
        self._step = "chunk_size"
        return True

    def _read_trailers(self) -> bool:
        line = self._line(TRAILER_BYTES_MAX)
        if line is None:
            return False
        if not line:
            self._finish()
        return True

    def _line(self, bytes_max: int) -> bytes | None:
        end = self._buffer.find(b"\r\n")
        if end > bytes_max or (end < 0 and len(self._buffer) > bytes_max):
            raise HttpError("a line of the answer is too long")
        if end < 0:
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line


def _status(line: str) -> int:
    version, _, rest = line.partition(" ")
    digits = rest[:3]
    if version not in ("HTTP/1.1", "HTTP/1.0") or not (digits.isascii() and digits.isdigit() and len(digits) == 3):
        raise HttpError(f"the peer does not speak HTTP/1.1: {line[:80]!r}")
    return int(digits)


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not name or name != name.strip():
        raise HttpError(f"the answer has the malformed header {line[:80]!r}")
    return name.lower(), value.strip()


def _length(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise HttpError(f"the answer has the malformed length {text[:40]!r}")
    return int(text)
