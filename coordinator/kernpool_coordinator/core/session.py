"""What the core asks of a node's link: the link server implements it, tests implement it in memory."""

from typing import Protocol

from kernpool_mesh.messages import Message


class ByteStream(Protocol):
    """One byte stream inside a link, with credit (DECISIONS 19); `kernpool_mesh.stream.LinkStream` is one."""

    async def read(self, n: int = -1, /) -> bytes:
        """Up to n bytes, as they come; empty at the end."""
        ...

    def write(self, data: bytes, /) -> None:
        """Queue bytes; follow with `drain`."""
        ...

    async def drain(self) -> None:
        """Wait until the queue is short again."""
        ...

    def write_eof(self) -> None:
        """No more bytes from this side."""
        ...

    def reset(self, error: str = "", /) -> None:
        """Over, both ways, at once."""
        ...


class NodeSession(Protocol):
    """One live link to one agent. It is dead for good once closed: a node that returns brings a new session."""

    @property
    def node_id(self) -> str:
        """The id of the certificate, never of the Hello."""
        ...

    def send_nowait(self, message: Message, /) -> None:
        """Queue a message, in order; raises BusyError when the bounded queue is full, UnreachableError when closed."""
        ...

    async def open_stream(self, actor: str, object_: str, verbs: list[str], /) -> ByteStream:
        """Open a stream to the agent's data-plane server; raises UnreachableError when closed."""
        ...

    def close(self, reason: str, /) -> None:
        """Hang up now; `ControlPlane.node_disconnected` follows. Never raises."""
        ...
