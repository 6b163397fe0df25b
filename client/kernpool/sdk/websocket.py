"""A WebSocket in blocking code: one thread may send while another receives, and output is taken while we send."""

import json
import threading
import time
from collections import deque
from typing import Final, final

from kernpool.errors import ProtocolError
from kernpool.protocol.calls import refusal
from kernpool.protocol.http1 import AnswerReader, HttpError, request_head
from kernpool.protocol.origin import Origin
from kernpool.protocol.retries import TransportError
from kernpool.protocol.websocket import FrameReader, Handshake, Message, Opcode, WebSocketError, close_payload, frame
from kernpool.sdk.connection import Connection
from kernpool.sdk.transport import Transport

INBOX_BYTES_MAX: Final = 64 << 20
"""What comes in while only sending goes on is kept up to here."""
OPEN_TIMEOUT_S: Final = 65.0
REFUSAL_BYTES_MAX: Final = 1 << 20


@final
class WebSocket:
    """Owns its connection."""

    __slots__ = (
        "_closing", "_connection", "_frames", "_inbox", "_inbox_bytes", "_pongs", "_read_lock", "_send_lock",
        "_transport",
    )  # fmt: skip

    def __init__(self, transport: Transport, connection: Connection, first_bytes: bytes) -> None:
        self._transport = transport
        self._connection = connection
        self._frames = FrameReader()
        self._inbox: deque[Message] = deque()
        self._inbox_bytes = 0
        self._pongs: deque[bytes] = deque(maxlen=8)
        """Answers to pings that are due; only the last ones count."""
        self._read_lock = threading.Lock()
        self._send_lock = threading.Lock()
        self._closing = False
        self._take(first_bytes)

    @classmethod
    def open(cls, transport: Transport, origin: Origin, path: str) -> "WebSocket":
        """Connect and shake hands. Raises TransportError, ApiError (a refusal), ProtocolError."""
        handshake = Handshake()
        connection = transport.connect(origin)
        try:
            deadline_s = time.monotonic() + OPEN_TIMEOUT_S
            headers = [*origin.headers(), *handshake.headers]
            connection.send(request_head("GET", origin.prefix + path, headers), deadline_s)
            reader = AnswerReader()
            _read_head(reader, connection, deadline_s)
            handshake.check(reader.status, reader.headers)
            return cls(transport, connection, reader.take_rest())
        except WebSocketError as error:
            transport.drop(connection)
            raise ProtocolError(f"{error}.") from error
        except BaseException:
            transport.drop(connection)
            raise

    def send(self, kind: Opcode, data: bytes) -> None:
        """Send one message. Raises TransportError."""
        with self._send_lock:
            self._send_frame(kind, data)
        self._answer_pings()

    def send_json(self, document: object) -> None:
        """Send one text message."""
        self.send(Opcode.TEXT, json.dumps(document, separators=(",", ":")).encode())

    def receive(self, deadline_s: float | None = None) -> Message:
        """Wait for the next TEXT, BINARY or CLOSE. Raises TransportError."""
        while True:
            with self._read_lock:
                while not self._inbox:
                    data = self._connection.receive(deadline_s)
                    if not data:
                        raise TransportError("the connection was closed in the middle of the output", sent=True)
                    self._take(data)
                message = self._inbox.popleft()
                self._inbox_bytes -= len(message.data)
            self._answer_pings()
            return message

    def close(self, code: int = 1000) -> None:
        """Say goodbye where that needs no waiting, and close."""
        if self._closing:
            return
        self._closing = True
        if self._send_lock.acquire(blocking=False):
            try:
                self._connection.send_some(memoryview(frame(Opcode.CLOSE, close_payload(code))))
            except TransportError:
                pass  # it is gone already, which is all we want
            finally:
                self._send_lock.release()
        self._transport.drop(self._connection)

    def _send_frame(self, kind: Opcode, data: bytes) -> None:
        view = memoryview(frame(kind, data))
        view = view[self._connection.send_some(view) :]
        while view:
            self._wait_to_send()
            view = view[self._connection.send_some(view) :]

    def _wait_to_send(self) -> None:
        """Wait for room, and read meanwhile unless another thread does: the peer may wait for us to take its output."""
        reads = self._inbox_bytes < INBOX_BYTES_MAX and self._read_lock.acquire(blocking=False)
        try:
            if self._inbox_bytes >= INBOX_BYTES_MAX:
                raise BufferError("64 MiB of output wait to be read: read while you write, in another thread")
            self._connection.wait(read=reads, write=True, deadline_s=None)
            data = self._connection.receive_some() if reads else None
            if data:
                self._take(data)
        finally:
            if reads:
                self._read_lock.release()

    def _take(self, data: bytes) -> None:
        try:
            messages = self._frames.feed(data)
        except WebSocketError as error:
            raise ProtocolError(f"{error}.") from error
        for message in messages:
            if message.kind is Opcode.PING:
                self._pongs.append(message.data)
            elif message.kind is not Opcode.PONG:
                self._inbox.append(message)
                self._inbox_bytes += len(message.data)

    def _answer_pings(self) -> None:
        while self._pongs and self._send_lock.acquire(blocking=False):
            try:
                if self._pongs:
                    self._send_frame(Opcode.PONG, self._pongs.popleft())
            finally:
                self._send_lock.release()


def _read_head(reader: AnswerReader, connection: Connection, deadline_s: float) -> None:
    """Read up to the head of a 101, or a whole refusal, which is raised as ApiError."""
    body = b""
    try:
        while not reader.status or (reader.status != 101 and not reader.ended):
            data = connection.receive(deadline_s)
            if data:
                reader.feed(data)
            else:
                reader.feed_eof()
            body += reader.take_body() if reader.status != 101 else b""
            if len(body) > REFUSAL_BYTES_MAX:
                break
    except HttpError as error:
        raise TransportError(str(error), sent=True) from error
    if reader.status >= 300:
        raise refusal(reader.status, body, "GET (WebSocket)")
