"""The reader of HTTP answers: whatever the cuts between packets, and whatever a hostile peer sends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernpool.protocol.http1 import HEAD_BYTES_MAX, AnswerReader, HttpError, chunk, request_head

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def read(data: bytes, *, step: int = 0, eof: bool = False) -> tuple[AnswerReader, bytes]:
    """Feed the bytes, in pieces of `step`."""
    reader = AnswerReader()
    body = b""
    for start in range(0, len(data), step or len(data) or 1):
        reader.feed(data[start : start + (step or len(data))])
        body += reader.take_body()
    if eof:
        reader.feed_eof()
        body += reader.take_body()
    return reader, body


@pytest.mark.parametrize("step", [1, 2, 7, 0])
@pytest.mark.parametrize(
    ("answer", "eof"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A:  b \r\n\r\nhello", False),
        (
            CHUNKED + b"2\r\nhe\r\n3;ext=1\r\nllo\r\n0\r\nTrailer: x\r\n\r\n",
            False,
        ),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", False),
        (b"HTTP/1.0 200 OK\r\n\r\nhello", True),
    ],
    ids=["length", "chunked", "after-100", "until-eof"],
)
def test_every_framing_is_read_whatever_the_packets(answer: bytes, eof: bool, step: int) -> None:
    reader, body = read(answer, step=step, eof=eof)
    assert (reader.status, body, reader.ended) == (200, b"hello", True)
    assert reader.keep_alive is not eof


def test_answers_without_a_body_end_at_once() -> None:
    reader, body = read(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
    assert (reader.status, body, reader.ended, reader.keep_alive) == (204, b"", True, False)


def test_what_follows_a_101_is_not_http_any_more() -> None:
    reader, _ = read(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n\x81\x02hi")
    assert (reader.status, reader.take_rest()) == (101, b"\x81\x02hi")


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 2xx OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n Folded: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\n" + b"A: " + b"x" * HEAD_BYTES_MAX,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 2000,
    ],
)  # fmt: skip
def test_what_is_no_answer_is_refused(answer: bytes) -> None:
    """A proxy, another service on that port, or somebody hostile."""
    with pytest.raises(HttpError):
        read(answer)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n",
    ],
)
def test_an_answer_that_stops_in_the_middle_is_not_taken_for_whole(answer: bytes) -> None:
    with pytest.raises(HttpError):
        read(answer, eof=True)


@given(st.binary(max_size=300), st.integers(1, 40))
def test_no_bytes_make_it_fail_otherwise(data: bytes, step: int) -> None:
    try:
        read(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + data, step=step)
        read(data, step=step)
    except HttpError:
        return


@given(st.lists(st.binary(min_size=1, max_size=100), max_size=20), st.integers(1, 64))
def test_chunks_come_out_as_they_went_in(pieces: list[bytes], step: int) -> None:
    framed = b"".join(map(chunk, [*pieces, b""]))
    reader, body = read(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + framed, step=step)
    assert (body, reader.ended) == (b"".join(pieces), True)


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "a\0b", "ä"])
def test_a_value_cannot_break_out_of_its_header(value: str) -> None:
    """A token file that ends in two lines must not become two headers."""
    with pytest.raises(ValueError, match="characters that HTTP forbids"):
        request_head("GET", "/", [("Authorization", f"Bearer {value}")])
