"""Errors of the mesh: what went wrong on the wire, with which frame, stream or token, and what to do next."""

from typing import final


class MeshError(Exception):
    """Base of every error that this room raises."""


# --- codec ---


class CodecError(MeshError):
    """Bytes that are no message of ours, or a message that cannot become bytes."""


@final
class UnknownTypeError(CodecError):
    """A well-formed frame whose TYPE this version does not know; the link drops it and goes on."""

    def __init__(self, type_number: int) -> None:
        super().__init__(
            f"unknown message type {type_number}: the other side speaks a newer protocol; upgrade this side"
        )
        self.type_number = type_number


@final
class MalformedMessageError(CodecError):
    """Bytes that do not decode to the message they claim to be."""


@final
class MessageTooLargeError(CodecError):
    """A message beyond MESSAGE_BYTES_MAX; split it or send its bytes through a stream."""


# --- link ---


class LinkError(MeshError):
    """Something about a link as a whole."""


@final
class LinkClosedError(LinkError):
    """The link is closed or broke; the sentence says why."""


@final
class LinkBusyError(LinkError):
    """The send queue (or the table of streams) is full right now; wait with `send` or drop the message."""


# --- streams ---


class StreamError(MeshError):
    """Something about one stream; the link itself goes on."""


@final
class StreamResetError(StreamError):
    """The stream was reset, by either side or because its link ended; the sentence says why."""


@final
class StreamStateError(StreamError):
    """An operation that the stream's state does not allow, with the stream's history."""


@final
class CreditExceededError(StreamError):
    """The peer sent more bytes than it had credit for."""


# --- data tokens ---


class DataTokenError(MeshError):
    """A data-plane token that must not be honoured; `code` is machine-readable."""

    code = "invalid_token"


@final
class DataTokenMalformedError(DataTokenError):
    """Not a `kpd1.` token at all, or its claims have another shape."""

    code = "malformed_token"


@final
class DataTokenSignatureError(DataTokenError):
    """Signed by no key that this node holds."""

    code = "bad_signature"


@final
class DataTokenExpiredError(DataTokenError):
    """Its time is over, or it claims to last longer than any token may."""

    code = "expired_token"


@final
class DataTokenNodeError(DataTokenError):
    """Made for another node."""

    code = "wrong_node"
