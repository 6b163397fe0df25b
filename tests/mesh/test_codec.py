"""The codec: what goes in comes out, and hostile bytes end in a typed error."""

import contextlib
import dataclasses
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernpool_mesh import codec
from kernpool_mesh.codec import decode, encode, message_classes
from kernpool_mesh.errors import CodecError, MalformedMessageError, MessageTooLargeError, UnknownTypeError
from kernpool_mesh.messages import (
    Heartbeat,
    Hello,
    Inventory,
    Message,
    Reply,
    Resources,
    SandboxItem,
    SandboxItems,
    StopAttempt,
    StreamData,
)
from kernpool_mesh.reasons import EndReason

CLASSES = list(message_classes())
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
st.register_type_strategy(int, st.integers(-(2**63), 2**63 - 1))
st.register_type_strategy(float, st.floats(allow_nan=False))
facts = st.dictionaries(st.text(max_size=8), plain, max_size=4)


def messages() -> st.SearchStrategy[Message]:
    strategies = [st.builds(cls, facts=facts) if cls is Inventory else st.from_type(cls) for cls in CLASSES]
    return st.one_of(strategies)


@settings(max_examples=300, deadline=None)
@given(messages())
def test_what_is_encoded_comes_back_equal(message: Message) -> None:
    """Every message with any values of its types."""
    assert decode(encode(message)) == message


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_codec_error(data: bytes) -> None:
    """A compromised node sends anything; nothing but a CodecError may reach the link."""
    with contextlib.suppress(CodecError):
        decode(data)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([cls.TYPE for cls in CLASSES]), st.lists(plain | st.binary(max_size=8), max_size=12))
def test_any_fields_are_a_message_or_a_codec_error(type_number: int, fields: list[Any]) -> None:
    """The same with a valid head: wrong types and numbers of fields."""
    try:
        message = decode(msgpack.packb([type_number, *fields]))
    except CodecError:
        return
    assert decode(encode(message)) == message


@settings(max_examples=200, deadline=None)
@given(messages(), st.data())
def test_one_flipped_byte_is_a_message_or_a_codec_error(message: Message, data: st.DataObject) -> None:
    """A faulty other side; TLS rules out the wire."""
    frame = bytearray(encode(message))
    frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(CodecError):
        decode(frame)


@settings(max_examples=100, deadline=None)
@given(messages(), st.lists(plain, min_size=1, max_size=3))
def test_extra_items_are_ignored(message: Message, extra: list[Any]) -> None:
    """A newer other side sends fields that this version does not know."""
    items = msgpack.unpackb(encode(message))
    if len(items) == 1 + len(dataclasses.fields(message)):
        assert decode(msgpack.packb([*items, *extra])) == message


def test_missing_trailing_fields_take_their_defaults() -> None:
    """An older other side does not know the newest fields."""
    assert decode(msgpack.packb([3, 1, [1000]])) == Heartbeat(1, Resources(1000))


def test_an_unknown_type_tells_its_number() -> None:
    """A newer other side sends a message that this version does not know: it is dropped and named in the log."""
    with pytest.raises(UnknownTypeError, match="250") as error:
        decode(msgpack.packb([250, "x"]))
    assert error.value.type_number == 250


@pytest.mark.parametrize(
    ("items", "sentence"),
    [
        ([3, "one", []], "Heartbeat.seq: expected an integer"),
        ([3, True, []], "Heartbeat.seq: expected an integer"),
        ([3, 1, [0.5]], "Resources.cpu_millis: expected an integer"),
        ([3, 1, {}], "Heartbeat.free: expected an array"),
        ([3], "Heartbeat has 0 fields, at least 2"),
        ([35, 1, "j", 0, 0, "failed"], "StopAttempt.reason: expected one of the EndReason values"),
        ([65, 2, "text"], "StreamData.data: expected bytes"),
        ([36, [["j", 1]]], "AckAttempts.attempts: expected an array of 3"),
        ([1, 1, 1, "n", 2**64 - 1, "b", "v"], "Hello.incarnation: expected an integer below"),
        ([], "an array that starts with its type number"),
        ({"type": 3}, "an array that starts with its type number"),
        (["3"], "an array that starts with its type number"),
    ],
)
def test_a_wrong_field_is_named(items: Any, sentence: str) -> None:
    """A bug on the other side is found by the log line alone."""
    with pytest.raises(MalformedMessageError, match=sentence.replace("[", r"\[")):
        decode(msgpack.packb(items))


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xc1", b"\x93\x03", encode(Reply(1)) + b"\x00", msgpack.packb(["x" * 10], use_bin_type=True)[:-1],
        b"\x91" * 2000, b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff",
        msgpack.packb([3, msgpack.ExtType(1, b"x")]), msgpack.packb([8, 1, b"\xff\xfe"], use_bin_type=False),
        msgpack.packb([2, "h", [], [], [], [], {1: "not a string key"}]),
        b"\x92\x08\xd6\xff\x00\x00\x00\x00",
    ],
)  # fmt: skip
def test_broken_msgpack_is_malformed(data: bytes) -> None:
    """Truncated, doubled, too deep, lengths that lie, extension types, text that is no UTF-8."""
    with pytest.raises(MalformedMessageError):
        decode(data)


def test_facts_may_nest_only_so_deep() -> None:
    """A node reports facts that would overflow whoever walks them."""
    facts: Any = "bottom"
    for _ in range(20):
        facts = [facts]
    with pytest.raises(MalformedMessageError, match="at most 8 levels"):
        decode(encode(Inventory("h", Resources(), facts={"deep": facts})))


def test_a_message_beyond_the_bound_is_refused_on_both_sides() -> None:
    """A result with 5 MiB of output."""
    with pytest.raises(MessageTooLargeError, match="StreamData of"):
        encode(StreamData(2, b"x" * codec.MESSAGE_BYTES_MAX))
    with pytest.raises(MalformedMessageError, match="exceeds"):
        decode(msgpack.packb([65, 2, b"x" * codec.MESSAGE_BYTES_MAX]))


def test_tiny_elements_cannot_multiply_their_bytes_in_memory() -> None:
    """4 MiB of empty arrays would become 250 MiB of objects in the coordinator."""
    rows: list[list[list[int]]] = [[[]] * 60_000] * 60
    data = msgpack.packb([4, rows, []])
    assert len(data) < codec.MESSAGE_BYTES_MAX
    tracemalloc.start()
    with pytest.raises(MalformedMessageError, match="elements"):
        decode(data)
    _size, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_large_honest_messages_pass() -> None:
    """240 results with kilobytes of output each."""
    items = [SandboxItem(f"sb-{i}", error="x" * 8000) for i in range(240)]
    assert decode(encode(SandboxItems(1, items))) == SandboxItems(1, items)


def test_enums_travel_by_value_and_whole_numbers_are_floats_too() -> None:
    """Other languages write 10 where Python writes 10.0."""
    message = decode(msgpack.packb([35, 1, "j-1", 0, 1, "drained", 10]))
    assert message == StopAttempt(1, "j-1", 0, 1, EndReason.DRAINED, 10.0)
    assert isinstance(message, StopAttempt)
    assert type(message.grace_s) is float


def test_what_is_no_message_is_not_encoded() -> None:
    """A record is handed to the link by mistake."""
    with pytest.raises(TypeError, match="Resources is not a message"):
        encode(Resources())  # type: ignore[arg-type]


def test_memoryviews_and_bytearrays_decode_too() -> None:
    """aiohttp hands over either."""
    data = encode(Hello(1, 1, "n", 1, "b", "v"))
    assert decode(bytearray(data)) == decode(memoryview(data)) == decode(data)
