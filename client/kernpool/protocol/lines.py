"""NDJSON without I/O: bytes in, JSON documents out, with a bound on each line."""

import json
from typing import Any, Final, final

from kernpool.errors import ProtocolError

LINE_BYTES_MAX: Final = 32 << 20
"""An item of a bulk answer holds two streams of up to 8 MiB in base64, and its sandbox."""


@final
class LineReader:
    """Cuts a byte stream into lines and reads each as one JSON object."""

    __slots__ = ("_buffer", "_line_bytes_max", "_searched")

    def __init__(self, line_bytes_max: int = LINE_BYTES_MAX) -> None:
        self._buffer = bytearray()
        self._searched = 0
        """Bytes of the buffer known to hold no line end: a long line is searched once, not once a piece."""
        self._line_bytes_max = line_bytes_max

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Take the next bytes, give the objects that are whole now. Raises ProtocolError."""
        self._buffer += data
        if self._buffer.find(b"\n", self._searched) < 0:
            self._searched = len(self._buffer)
            if self._searched > self._line_bytes_max:
                raise ProtocolError(f"the server sent a line of more than {self._line_bytes_max} bytes")
            return []
        *lines, rest = self._buffer.split(b"\n")
        self._buffer, self._searched = rest, len(rest)
        return [read_object(bytes(line)) for line in lines if line.strip()]

    @property
    def pending(self) -> bool:
        """There is a line without its end."""
        return bool(self._buffer.strip())


def read_object(line: bytes) -> dict[str, Any]:
    """Read one JSON object. Raises ProtocolError."""
    document = read_json(line)
    if not isinstance(document, dict):
        raise ProtocolError(f"the server sent {_shown(line)} where an object was expected")
    return document


def read_json(text: bytes) -> Any:
    """Read JSON. Raises ProtocolError, also for what is nested too deeply."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the server sent {_shown(text)} where JSON was expected") from error


def _shown(text: bytes) -> str:
    start = text[:60].decode("utf-8", "replace")
    return repr(start if len(text) <= 60 else f"{start}...")
