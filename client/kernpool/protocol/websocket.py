"""WebSocket (RFC 6455) as a client speaks it, without I/O: frames in and out, every length bounded before it counts."""

import base64
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, final

MESSAGE_BYTES_MAX: Final = 4 << 20
"""Largest message taken; the node sends at most 64 KiB of output in one."""
CONTROL_BYTES_MAX: Final = 125
_ACCEPT_SALT: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_MASK_WORD: Final = 4


class Opcode(IntEnum):
    """What a frame carries."""

    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


class WebSocketError(Exception):
    """The peer broke the protocol, or refused to speak it."""


@final
@dataclass(frozen=True, slots=True)
class Message:
    """One whole message or control frame."""

    kind: Opcode
    """TEXT, BINARY, CLOSE, PING or PONG."""
    data: bytes
    code: int = 0
    """Of CLOSE: its status code; 1005 when it had none."""


@final
class Handshake:
    """The opening request's headers and the check of its answer."""

    __slots__ = ("headers", "key")

    def __init__(self, random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        self.key = base64.b64encode(random_bytes(16)).decode()
        self.headers = [
            ("Connection", "Upgrade"),
            ("Upgrade", "websocket"),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Key", self.key),
        ]

    def check(self, status: int, headers: Mapping[str, str]) -> None:
        """Raise WebSocketError unless the answer accepts exactly this handshake."""
        import hashlib  # loads OpenSSL: 3 ms that only a WebSocket needs

        digest = hashlib.sha1(self.key.encode() + _ACCEPT_SALT, usedforsecurity=False).digest()
        expected = base64.b64encode(digest).decode()
        if status != 101:
            raise WebSocketError(f"the server did not switch to WebSocket (status {status})")
        if headers.get("upgrade", "").lower() != "websocket" or headers.get("sec-websocket-accept") != expected:
            raise WebSocketError("the server's answer does not belong to this WebSocket handshake")
        if headers.get("sec-websocket-extensions"):
            raise WebSocketError("the server chose a WebSocket extension that nobody offered")


def frame(kind: Opcode, data: bytes, random_bytes: Callable[[int], bytes] = os.urandom) -> bytes:
    """Write one whole message as a masked frame."""
    length = len(data)
    if kind >= Opcode.CLOSE and length > CONTROL_BYTES_MAX:
        raise ValueError(f"a control frame holds at most {CONTROL_BYTES_MAX} bytes")
    if length < 126:
        head = bytes((0x80 | kind, 0x80 | length))
    elif length < 1 << 16:
        head = bytes((0x80 | kind, 0x80 | 126)) + length.to_bytes(2, "big")
    else:
        head = bytes((0x80 | kind, 0x80 | 127)) + length.to_bytes(8, "big")
    mask = random_bytes(_MASK_WORD)
    return head + mask + masked(data, mask)


def masked(data: bytes, mask: bytes) -> bytes:
    """XOR `data` with the repeated mask: as two big integers, which is 50 times faster than byte by byte."""
    length = len(data)
    if not length:
        return b""
    pad = (mask * (length // _MASK_WORD + 1))[:length]
    return (int.from_bytes(data, "big") ^ int.from_bytes(pad, "big")).to_bytes(length, "big")


@final
class FrameReader:
    """Takes bytes as they come and gives whole messages."""

    __slots__ = ("_buffer", "_kind", "_message_bytes_max", "_parts", "_size", "closed")

    def __init__(self, message_bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        self.closed = False
        """The peer sent CLOSE: nothing may follow."""
        self._buffer = bytearray()
        self._parts: list[bytes] = []
        """Of a fragmented message: what came so far."""
        self._size = 0
        self._kind: Opcode | None = None
        """Of a fragmented message: TEXT or BINARY; None between messages."""
        self._message_bytes_max = message_bytes_max

    def feed(self, data: bytes) -> list[Message]:
        """Take the next bytes. Raises WebSocketError."""
        self._buffer += data
        messages: list[Message] = []
        while not self.closed:
            cut = self._cut_frame()
            if cut is None:
                break
            message = self._take(*cut)
            if message is not None:
                messages.append(message)
        return messages

    def _cut_frame(self) -> tuple[bool, Opcode, bytes] | None:
        """Cut the next whole frame off the buffer: (final, opcode, payload)."""
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        is_final, kind = bool(buffer[0] & 0x80), _opcode(buffer[0])
        if buffer[1] & 0x80:
            raise WebSocketError("the server masked a frame")
        length, start = buffer[1] & 0x7F, 2
        if kind >= Opcode.CLOSE and (length > CONTROL_BYTES_MAX or not is_final):
            raise WebSocketError("the server sent a control frame that is too long or in pieces")
        if length >= 126:
            start = 4 if length == 126 else 10
            if len(buffer) < start:
                return None
            length = int.from_bytes(buffer[2:start], "big")
        if length + self._size > self._message_bytes_max:
            raise WebSocketError(f"the server sent a message of more than {self._message_bytes_max} bytes")
        if len(buffer) < start + length:
            return None
        payload = bytes(buffer[start : start + length])
        del buffer[: start + length]
        return is_final, kind, payload

    def _take(self, is_final: bool, kind: Opcode, payload: bytes) -> Message | None:  # noqa: FBT001 - a bit of the frame
        """Give the message that this frame makes whole, if any."""
        if kind is Opcode.CLOSE:
            return self._close(payload)
        if kind >= Opcode.CLOSE:
            return Message(kind, payload)
        if (kind is Opcode.CONTINUATION) is (self._kind is None):
            raise WebSocketError("the server mixed up the pieces of its messages")
        started = kind if self._kind is None else self._kind
        if is_final and not self._parts:
            self._kind = None
            return _data_message(started, payload)
        self._parts.append(payload)
        self._size += len(payload)
        self._kind = started
        if not is_final:
            return None
        whole = b"".join(self._parts)
        self._parts.clear()
        self._size, self._kind = 0, None
        return _data_message(started, whole)

    def _close(self, payload: bytes) -> Message:
        if len(payload) == 1:
            raise WebSocketError("the server sent a malformed close frame")
        self.closed = True
        code = int.from_bytes(payload[:2], "big") if payload else 1005
        return Message(Opcode.CLOSE, payload[2:], code)


def close_payload(code: int, reason: str = "") -> bytes:
    """Write the payload of a close frame."""
    return code.to_bytes(2, "big") + reason.encode()[: CONTROL_BYTES_MAX - 2]


def _opcode(first: int) -> Opcode:
    if first & 0x70:
        raise WebSocketError("the server set a reserved bit of a frame")
    try:
        return Opcode(first & 0x0F)
    except ValueError:
        raise WebSocketError(f"the server sent a frame of the unknown kind {first & 0x0F}") from None


def _data_message(kind: Opcode, payload: bytes) -> Message:
    if kind is Opcode.TEXT:
        try:
            payload.decode("utf-8")
        except UnicodeDecodeError:
            raise WebSocketError("the server sent a text message that is not UTF-8") from None
    return Message(kind, payload)
