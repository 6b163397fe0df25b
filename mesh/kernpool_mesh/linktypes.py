"""What goes into a link and comes out of it: its limits, its callbacks, and how it ended."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import final

from kernpool_mesh.messages import FRAME_BYTES_MAX, Message
from kernpool_mesh.stream import LinkStream

Handler = Callable[[Message], Awaitable[None] | None]
"""Called with each message in order. Return at once (start a task for what takes long): the whole link waits for it."""
StreamHandler = Callable[[LinkStream], object]
"""Called with each stream that the other side opens."""


class LinkEndCause(StrEnum):
    """Why a link is over."""

    CLOSED_HERE = "closed_here"
    """This side called close()."""
    CLOSED_BY_PEER = "closed_by_peer"
    """The other side closed it and said why."""
    LOST = "lost"
    """The connection broke without a word."""
    PROTOCOL_ERROR = "protocol_error"
    """The other side sent what it must not."""
    HANDLER_FAILED = "handler_failed"
    """A handler of this side raised; it was logged."""
    STALLED = "stalled"
    """The other side took no bytes for send_timeout_s."""


@final
@dataclass(frozen=True, slots=True)
class LinkEnd:
    """How a link ended."""

    cause: LinkEndCause
    sentence: str


@final
@dataclass(frozen=True, slots=True)
class LinkConfig:
    """Limits of a link; both sides use the same frame size and credit."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    stream_credit_bytes: int = 256 * 1024
    """What either side of a new stream may send before it gets more: part of the protocol, not a taste."""
    send_queue_bytes_max: int = 8 * 1024 * 1024
    """Queued control bytes beyond which `send` waits and `send_nowait` refuses."""
    streams_max: int = 1024
    send_timeout_s: float = 30.0
    """A peer that takes nothing for so long is given up; one that acknowledges nothing, too."""
    close_timeout_s: float = 2.0
