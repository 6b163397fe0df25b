"""The streams of one link: who may open which number, which are open, and where a frame of each belongs."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, final

from kernpool_mesh.errors import LinkBusyError, MalformedMessageError
from kernpool_mesh.messages import StreamCredit, StreamData, StreamEof, StreamOpen, StreamReset
from kernpool_mesh.stream import LinkStream, StreamHost
from kernpool_mesh.streamstate import CREDIT_MAX, StreamState

TEXT_CHARS_MAX: Final = 512
VERBS_MAX: Final = 32


class Side(StrEnum):
    """Which end of the link this process is; it decides the parity of stream ids."""

    COORDINATOR = "coordinator"
    """Opens even streams."""
    AGENT = "agent"
    """Opens odd streams."""


@final
class StreamTable:
    """Open streams by number; each side's numbers only grow, so a late frame is told from a false one."""

    def __init__(self, host: StreamHost, side: Side, credit_bytes: int, streams_max: int) -> None:
        self._host = host
        self._credit_bytes = credit_bytes
        self._streams_max = streams_max
        self._streams: dict[int, LinkStream] = {}
        self._next_id = 2 if side is Side.COORDINATOR else 1
        """The number of this side's next stream."""
        self._peer_next_id = 1 if side is Side.COORDINATOR else 2
        """The lowest number that the other side may still use."""

    def __len__(self) -> int:
        return len(self._streams)

    def open(self, actor: str, object_: str, verbs: tuple[str, ...]) -> LinkStream:
        """A new stream of this side. Raises LinkBusyError when too many are open, ValueError for rights too long."""
        if not _within_bounds(actor, object_, verbs):
            raise ValueError(f"actor or object beyond {TEXT_CHARS_MAX} characters, or more than {VERBS_MAX} verbs")
        if len(self._streams) >= self._streams_max:
            raise LinkBusyError(f"{len(self._streams)} streams are open on this link; wait until one ends")
        stream_id = self._next_id
        self._next_id += 2
        return self._add(stream_id, self._credit_bytes, actor, object_, verbs)

    def accept(self, frame: StreamOpen, *, refuse: str) -> LinkStream | None:
        """The stream that the other side opens; None when it is refused (and told so by a reset).

        Raises MalformedMessageError for a number out of order or credit out of bounds.
        """
        if frame.stream_id < self._peer_next_id or (frame.stream_id - self._peer_next_id) % 2:
            raise MalformedMessageError(f"stream number {frame.stream_id} is out of order")
        if not 0 <= frame.credit <= CREDIT_MAX or not _within_bounds(frame.actor, frame.object, frame.verbs):
            raise MalformedMessageError(f"the opening of stream {frame.stream_id} is out of bounds")
        self._peer_next_id = frame.stream_id + 2
        if not refuse and len(self._streams) >= self._streams_max:
            refuse = f"{len(self._streams)} streams are open on this link; wait until one ends"
        if refuse:
            self._host.send_stream_control(StreamReset(frame.stream_id, refuse))
            return None
        return self._add(frame.stream_id, frame.credit, frame.actor, frame.object, tuple(frame.verbs))

    def dispatch(self, frame: StreamData | StreamCredit | StreamEof | StreamReset) -> None:
        """Hand a frame to its stream; frames that crossed the end of their stream are dropped.

        Raises MalformedMessageError for a stream that never was.
        """
        stream = self._streams.get(frame.stream_id)
        if stream is None:
            self._check_past(frame.stream_id)
            return
        match frame:
            case StreamData():
                stream.on_data(frame.data)
            case StreamCredit():
                stream.on_credit(frame.credit)
            case StreamEof():
                stream.on_eof()
            case StreamReset():
                stream.end_by_reset(frame.error or "reset by the other side")

    def remove(self, stream: LinkStream) -> None:
        """It is over."""
        self._streams.pop(stream.stream_id, None)

    def end_all(self, sentence: str) -> None:
        """The link is over, and all of them with it."""
        for stream in list(self._streams.values()):
            stream.end_by_reset(sentence)

    def _add(self, stream_id: int, send_credit: int, actor: str, object_: str, verbs: tuple[str, ...]) -> LinkStream:
        state = StreamState(stream_id, send_credit=send_credit, receive_credit=self._credit_bytes)
        stream = LinkStream(self._host, state, actor=actor, object_=object_, verbs=verbs)
        self._streams[stream_id] = stream
        return stream

    def _check_past(self, stream_id: int) -> None:
        next_id = self._next_id if (stream_id - self._next_id) % 2 == 0 else self._peer_next_id
        if not 0 < stream_id < next_id:
            raise MalformedMessageError(f"a frame for stream {stream_id}, which nobody opened")


def _within_bounds(actor: str, object_: str, verbs: Sequence[str]) -> bool:
    texts = (actor, object_, *verbs)
    return len(verbs) <= VERBS_MAX and all(len(text) <= TEXT_CHARS_MAX for text in texts)
