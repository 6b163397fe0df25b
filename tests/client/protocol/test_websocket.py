"""The WebSocket codec, against itself and against a hostile server."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernpool.protocol.websocket import (
    FrameReader,
    Handshake,
    Message,
    Opcode,
    WebSocketError,
    close_payload,
    frame,
    masked,
)


def unmasked(kind: int, data: bytes, *, final: bool = True) -> bytes:
    """Write a frame as a server does."""
    head = bytes([(0x80 if final else 0) | kind])
    if len(data) < 126:
        return head + bytes([len(data)]) + data
    if len(data) < 1 << 16:
        return head + b"\x7e" + len(data).to_bytes(2, "big") + data
    return head + b"\x7f" + len(data).to_bytes(8, "big") + data


def test_the_handshake_of_the_standard_is_made_and_checked() -> None:
    """The example of RFC 6455, section 1.3."""
    handshake = Handshake(lambda _: b"the sample nonce")
    assert handshake.key == "dGhlIHNhbXBsZSBub25jZQ=="
    good = {"upgrade": "WebSocket", "sec-websocket-accept": "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="}
    handshake.check(101, good)
    for status, headers in (
        (200, good),
        (101, {**good, "sec-websocket-accept": "x"}),
        (101, {**good, "upgrade": "h2c"}),
        (101, {**good, "sec-websocket-extensions": "permessage-deflate"}),
    ):
        with pytest.raises(WebSocketError):
            handshake.check(status, headers)


def test_frames_of_the_standard_are_written() -> None:
    """The masked Hello of RFC 6455, section 5.7."""
    assert frame(Opcode.TEXT, b"Hello", lambda _: b"\x37\xfa\x21\x3d").hex() == "818537fa213d7f9f4d5158"
    assert frame(Opcode.BINARY, b"x" * 126, lambda _: b"\0\0\0\0")[:4].hex() == "82fe007e"
    assert frame(Opcode.BINARY, b"x" * 65536, lambda _: b"\0\0\0\0")[:10].hex() == "82ff0000000000010000"
    with pytest.raises(ValueError, match="at most 125"):
        frame(Opcode.PING, b"x" * 126)


@given(st.binary(max_size=1000), st.binary(min_size=4, max_size=4))
def test_masking_is_its_own_inverse(data: bytes, mask: bytes) -> None:
    assert masked(masked(data, mask), mask) == data
    assert masked(data, mask) == bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))


@given(st.lists(st.binary(max_size=70_000), max_size=4), st.integers(1, 5000))
def test_messages_come_out_whole_whatever_the_packets(messages: list[bytes], step: int) -> None:
    stream = b"".join(unmasked(Opcode.BINARY, message) for message in messages)
    reader = FrameReader()
    got = [m for start in range(0, len(stream), step) for m in reader.feed(stream[start : start + step])]
    assert got == [Message(Opcode.BINARY, message) for message in messages]


def test_pieces_are_joined_with_control_frames_between() -> None:
    stream = (
        unmasked(1, b"he", final=False) + unmasked(9, b"ping") + unmasked(0, b"l", final=False) + unmasked(0, b"lo")
    )
    assert FrameReader().feed(stream + unmasked(8, close_payload(1000, "bye"))) == [
        Message(Opcode.PING, b"ping"),
        Message(Opcode.TEXT, b"hello"),
        Message(Opcode.CLOSE, b"bye", 1000),
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"\x81\x85\0\0\0\0hello",
        b"\xc1\x05hello",
        b"\x83\x00",
        b"\x09\x00",
        b"\x89\x7e\x00\x7e" + b"x" * 126,
        b"\x80\x01x",
        b"\x01\x01a\x01\x01b",
        b"\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x02\x7f\x00\x00\x00\x00\x00\x30\x00\x00" + b"x" * 0x300000 + b"\x80\x7f\x00\x00\x00\x00\x00\x30\x00\x00",
        b"\x88\x01x",
        b"\x81\x01\xff",
    ],
    ids=[
        "masked", "reserved-bit", "unknown-kind", "control-in-pieces", "long-control", "continues-nothing",
        "begins-twice", "longer-than-any-memory", "pieces-too-long-together", "one-byte-close", "text-not-utf8",
    ],
)  # fmt: skip
def test_a_server_that_breaks_the_rules_is_refused(data: bytes) -> None:
    with pytest.raises(WebSocketError):
        FrameReader().feed(data)


@given(st.binary(max_size=200), st.integers(1, 50))
def test_no_bytes_make_it_fail_otherwise(data: bytes, step: int) -> None:
    reader = FrameReader(1000)
    try:
        for start in range(0, len(data), step):
            reader.feed(data[start : start + step])
    except WebSocketError:
        return
