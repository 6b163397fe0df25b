"""One byte stream inside a link: read, write, half close, reset, with back-pressure by credit."""

from typing import final


@final
class LinkStream:
    """A two-way byte stream to the other side of the link; made by `Link.open_stream` or handed to `Link.on_stream`.

    Use it directly (`read`, `write`, `drain`, `write_eof`, `reset`) or give it to a `LinkTransport`, never both.
    """

    stream_id: int
    actor: str
    """Who acts, from the open frame."""
    object: str
    """`sandbox/<id>` or `job/<id>`."""
    verbs: tuple[str, ...]

    async def read(self, n: int = 65536) -> bytes:
        """Some bytes, at most `n`; b"" after the other side's end. Raises StreamResetError."""
        raise NotImplementedError

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Queue bytes; follow with `await drain()`. Raises StreamResetError, StreamStateError after write_eof."""
        raise NotImplementedError

    async def drain(self) -> None:
        """Wait until little is queued. Raises StreamResetError."""
        raise NotImplementedError

    def write_eof(self) -> None:
        """End this direction after what is queued; the other one stays open."""
        raise NotImplementedError

    def reset(self, error: str = "") -> None:
        """End both directions at once; queued bytes are dropped. Harmless when it is over already."""
        raise NotImplementedError

    async def wait_closed(self) -> None:
        """Wait until both directions are over (never raises)."""
        raise NotImplementedError

    @property
    def closed(self) -> bool:
        """Both directions are over."""
        raise NotImplementedError
