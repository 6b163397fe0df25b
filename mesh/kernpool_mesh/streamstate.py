"""Where one stream of a link stands and how many bytes either side may still send: a truth without I/O.

Phases, `S` = this side ends its direction, `R` = the other side ends its own, `X` = a reset by either side:

    open --S--> local_ended --R--> closed
      |              |
      R              X--> reset
      v              ^
    remote_ended --S--> closed        (open and remote_ended --X--> reset)

Credit is bytes: each side starts with the same agreed amount, spends it by sending, and gets more back as the reader
consumes. A peer that sends without credit is told so by CreditExceededError and its stream is reset.
"""

from enum import StrEnum
from typing import Final, final

from kernpool_mesh.errors import CreditExceededError, StreamStateError

CREDIT_MAX: Final = 2**31
"""More outstanding credit than this is a fault of the peer."""


class StreamPhase(StrEnum):
    """Which directions of a stream are open."""

    OPEN = "open"
    """Both."""
    LOCAL_ENDED = "local_ended"
    """This side sent its end; bytes may still come in."""
    REMOTE_ENDED = "remote_ended"
    """The other side sent its end; bytes may still go out."""
    CLOSED = "closed"
    """Neither: both sides ended in order."""
    RESET = "reset"
    """Neither: one side gave up."""


class StreamEvent(StrEnum):
    """What moves a stream from phase to phase."""

    SEND_EOF = "send_eof"
    RECEIVE_EOF = "receive_eof"
    RESET = "reset"


_TRANSITIONS: Final[dict[tuple[StreamPhase, StreamEvent], StreamPhase]] = {
    (StreamPhase.OPEN, StreamEvent.SEND_EOF): StreamPhase.LOCAL_ENDED,
    (StreamPhase.OPEN, StreamEvent.RECEIVE_EOF): StreamPhase.REMOTE_ENDED,
    (StreamPhase.OPEN, StreamEvent.RESET): StreamPhase.RESET,
    (StreamPhase.LOCAL_ENDED, StreamEvent.RECEIVE_EOF): StreamPhase.CLOSED,
    (StreamPhase.LOCAL_ENDED, StreamEvent.RESET): StreamPhase.RESET,
    (StreamPhase.REMOTE_ENDED, StreamEvent.SEND_EOF): StreamPhase.CLOSED,
    (StreamPhase.REMOTE_ENDED, StreamEvent.RESET): StreamPhase.RESET,
}
_CAN_SEND: Final = frozenset({StreamPhase.OPEN, StreamPhase.REMOTE_ENDED})
_CAN_RECEIVE: Final = frozenset({StreamPhase.OPEN, StreamPhase.LOCAL_ENDED})


@final
class StreamState:
    """Phase and credit of one stream; every method either changes them or raises and changes nothing."""

    __slots__ = (
        "_grant_at",
        "_history",
        "_ungranted",
        "can_receive",
        "can_send",
        "phase",
        "receive_credit",
        "send_credit",
        "stream_id",
    )

    def __init__(self, stream_id: int, *, send_credit: int, receive_credit: int) -> None:
        self.stream_id = stream_id
        self.phase = StreamPhase.OPEN
        self.can_send = True
        """This direction is open (credit is another matter)."""
        self.can_receive = True
        """The other side has not ended its direction."""
        self.send_credit = send_credit
        """Bytes this side may send now."""
        self.receive_credit = receive_credit
        """Bytes the other side may send before it gets more."""
        self._grant_at = max(1, receive_credit // 2)
        """Consumed bytes gather up to here before they are granted anew: two grants per window, not one per chunk."""
        self._ungranted = 0
        """Bytes consumed and not yet granted anew."""
        self._history: list[str] = []
        """Every event so far, for the message of an illegal one; a stream has at most three."""

    @property
    def over(self) -> bool:
        """Neither direction is open."""
        return not (self.can_send or self.can_receive)

    def send(self, size: int) -> None:
        """Spend credit for `size` bytes that go out now. Raises StreamStateError, also without enough credit."""
        if not self.can_send or size > self.send_credit:
            raise self._illegal(f"send of {size} bytes with credit for {self.send_credit}")
        self.send_credit -= size

    def add_credit(self, size: int) -> None:
        """The other side grants `size` bytes more. Raises CreditExceededError for a grant beyond all reason."""
        if size <= 0 or self.send_credit + size > CREDIT_MAX:
            raise CreditExceededError(f"stream {self.stream_id}: a grant of {size} bytes is out of bounds")
        self.send_credit += size

    def receive(self, size: int) -> None:
        """`size` bytes came in. Raises StreamStateError after the peer's end, CreditExceededError beyond its credit."""
        if not self.can_receive:
            raise self._illegal(f"{size} bytes from the other side")
        if size > self.receive_credit:
            raise CreditExceededError(
                f"stream {self.stream_id}: the other side sent {size} bytes with credit for {self.receive_credit}"
            )
        self.receive_credit -= size

    def consume(self, size: int) -> int:
        """The reader took `size` bytes; how many to grant the other side now (0: not yet)."""
        self._ungranted += size
        if self._ungranted < self._grant_at or not self.can_receive:
            return 0
        grant, self._ungranted = self._ungranted, 0
        self.receive_credit += grant
        return grant

    def apply(self, event: StreamEvent) -> StreamPhase:
        """Move to the next phase. Raises StreamStateError, with the stream's history, for an event out of order."""
        phase = _TRANSITIONS.get((self.phase, event))
        if phase is None:
            raise self._illegal(event.value)
        self._history.append(event.value)
        self.phase = phase
        self.can_send = phase in _CAN_SEND
        self.can_receive = phase in _CAN_RECEIVE
        return phase

    def _illegal(self, what: str) -> StreamStateError:
        history = ", ".join(self._history) or "nothing yet"
        return StreamStateError(f"stream {self.stream_id} is {self.phase}: {what} is out of order (before: {history})")
