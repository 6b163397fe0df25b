"""What the SDK does when the other side is broken, hostile, or something else altogether."""

import base64
import hashlib
import json
import socket
import time
from typing import Any

import pytest
import raw_server as raw

from kernpool import ApiError, CutError, KernpoolError, ProtocolError, UnreachableError
from kernpool.protocol.retries import TransportError
from kernpool.sdk import Client
from kernpool.sdk.transport import Request


def client_of(server: raw.RawServer) -> Client:
    return Client(server.url, "kpt_test")


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernpool.protocol.retries.FIRST_PAUSE_S", 0.001)


@pytest.mark.parametrize(
    ("answer", "error", "told"),
    [
        (b"", UnreachableError, "no answer"),
        (b"SSH-2.0-OpenSSH_9.2p1\r\n", UnreachableError, "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{}", UnreachableError, "in the middle"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", UnreachableError, "no valid size"),
        (raw.ok(b"<html>Welcome to the hotel's network</html>"), ProtocolError, "where JSON was expected"),
        (raw.ok(b'{"server": {"version": 5}}'), ProtocolError, "`version` as 5, expected a text"),
        (raw.ok(b"[1, 2]"), ProtocolError, "expected an object"),
        (raw.ok(b"[" * 200_000), ProtocolError, "where JSON was expected"),
        (raw.ok(b'{"a": NaN, "nodes": {}}'), ProtocolError, "`nodes`"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://evil.example/\r\nContent-Length: 0\r\n\r\n", ApiError, "status 302"),
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\nbang", ApiError, "status 500: bang"),
    ],
)
def test_an_answer_that_is_none_is_told_as_what_it_is(answer: bytes, error: type[Exception], told: str) -> None:
    """Among them a redirect: our token must not follow it elsewhere."""
    with raw.RawServer(answer) as server, client_of(server) as client, pytest.raises(error) as caught:
        client.status()
    assert told in str(caught.value)


def test_an_answer_longer_than_any_listing_is_given_up() -> None:
    def flood(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(100):
            connection.sendall(b"x" * (1 << 20))

    with raw.RawServer(flood) as server, client_of(server) as client, pytest.raises(ProtocolError, match="longer than"):
        client.status()


def test_a_server_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernpool.protocol.calls.CALL_TIMEOUT_S", 0.05)

    def silent(connection: socket.socket) -> None:
        connection.recv(1)

    started_s = time.monotonic()
    with raw.RawServer(silent) as server, client_of(server) as client:
        call = Request("GET", "/status")
        with pytest.raises(TransportError, match="no answer in time"):
            client.transport.open(client.origin, call, 0.05)
    assert time.monotonic() - started_s < 5


def test_a_kept_connection_that_the_server_closed_is_replaced_without_a_word() -> None:
    body = b'{"items": [], "next": ""}'
    with raw.RawServer(raw.ok(body)) as server, client_of(server) as client:
        for _ in range(3):
            assert list(client.nodes()) == []
    assert len(server.requests) == 3


def test_a_create_is_sent_again_with_the_same_key_and_an_exec_is_not() -> None:
    item = json.dumps({"id": "sb-1", "sandbox": {"id": "sb-1"}}).encode() + b"\n"
    done = b'{"done": true, "created": 1, "failed": 0}\n'
    with raw.RawServer(b"", raw.chunked(item, done)) as server, client_of(server) as client:
        assert client.sandboxes.create(1).created == 1
    first, second = (json.loads(request.partition(b"\r\n\r\n")[2]) for request in server.requests)
    assert first["idempotency_key"] == second["idempotency_key"]
    with raw.RawServer(b"") as server, client_of(server) as client, pytest.raises(UnreachableError, match="may have"):
        client.sandboxes.handle("sb-1").exec(["true"])
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("answer", "error", "told"),
    [
        (raw.chunked(b'{"id": "sb-1", "sandbox": {"id": "sb-1"}}\n'), CutError, "broke off"),
        (raw.chunked(b'{"id": "sb-1"}\n', whole=False), CutError, "broke off"),
        (raw.chunked(b"not json\n"), ProtocolError, "where JSON was expected"),
        (raw.chunked(b'{"id": 7}\n'), ProtocolError, "`id`"),
        (raw.chunked(b'{"error": {"code": "no_capacity", "message": "full"}}\n'), ApiError, "full"),
    ],
)
def test_a_bulk_answer_that_breaks_off_is_never_taken_for_whole(
    answer: bytes, error: type[Exception], told: str
) -> None:
    with raw.RawServer(answer) as server, client_of(server) as client, pytest.raises(error) as caught:
        client.sandboxes.create(2)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ([b'{"stream": "stdout", "data_b64": "aGk="}\n'], CutError),
        ([b'{"stream": "stdlog", "data_b64": "aGk="}\n'], ProtocolError),
        ([b'{"stream": "stdout", "data_b64": "?"}\n'], ProtocolError),
        ([b'{"exit": 3}\n'], ProtocolError),
        ([b'{"exit": {"exit_code": 3}}\n'], ProtocolError),
        ([b'{"error": {"code": "internal", "message": "node gone"}}\n'], ApiError),
    ],
)
def test_an_exec_that_ends_without_its_end_is_an_error(lines: list[bytes], error: type[Exception]) -> None:
    """A command's output that was cut must never look like a command that wrote little."""
    with raw.RawServer(raw.chunked(*lines)) as server, client_of(server) as client, pytest.raises(error):
        client.sandboxes.handle("sb-1").exec(["true"])


def upgrade(*frames: bytes) -> Any:
    """Shake hands as a WebSocket server, then send these bytes."""

    def talk(connection: socket.socket, server: Any) -> None:
        request = server.requests[-1].decode()
        key = next(
            line.split(": ")[1] for line in request.split("\r\n") if line.lower().startswith("sec-websocket-key")
        )
        digest = hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()
        connection.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + base64.b64encode(digest) + b"\r\n\r\n" + b"".join(frames)
        )
        connection.recv(65536)

    return talk


@pytest.mark.parametrize(
    ("frames", "error", "told"),
    [
        ([b"\x82\x7f" + b"\xff" * 8], ProtocolError, "more than"),
        ([b"\x82\x03\x07hi"], ProtocolError, "without its channel"),
        ([b"\x81\x02{}"], ProtocolError, "`stream`"),
        ([b"\x82\x03\x01hi", b"\x88\x06\x03\xf3oops"], CutError, "oops"),
        ([b"\x82\x03\x01hi"], CutError, "broke"),
    ],
)
def test_a_websocket_that_breaks_the_rules_ends_in_an_error(
    frames: list[bytes], error: type[Exception], told: str
) -> None:
    talk = upgrade(*frames)
    server = raw.RawServer(lambda connection: talk(connection, server))
    with server, client_of(server) as client, pytest.raises(error) as caught:
        client.sandboxes.handle("sb-1").start(["cat"]).wait(5)
    assert told in str(caught.value)


def test_a_handshake_for_somebody_else_is_refused() -> None:
    answer = b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: AAAA\r\n\r\n"
    with raw.RawServer(answer) as server, client_of(server) as client, pytest.raises(ProtocolError, match="belong"):
        client.sandboxes.handle("sb-1").start(["cat"])


def test_a_token_with_a_line_break_is_never_sent() -> None:
    with pytest.raises(KernpoolError, match="token"):
        Client("http://127.0.0.1:1", "kpt_x\r\nX-Evil: 1")
