"""Messages to bytes and back: msgpack arrays `[TYPE, fields...]`, checked field by field.

The field plans are made once, at import, from the dataclasses in messages.py: an encoder is one attrgetter plus the
few fields that hold records, a decoder is one function per field. Nested records travel as plain arrays, enums by
value. Trailing fields that are missing take their defaults and extra items are ignored (DECISIONS 7). Hostile bytes
cost at most a bounded amount of memory and always end in a CodecError.
"""

import dataclasses
import operator
import types
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import msgpack

from kernpool_mesh import messages
from kernpool_mesh.errors import MalformedMessageError, MessageTooLargeError, UnknownTypeError
from kernpool_mesh.messages import Message

MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Largest encoded message; beyond the link's frame size it travels in fragments."""
ARRAY_ITEMS_MAX: Final = 65_536
MAP_ITEMS_MAX: Final = 4_096
STRING_BYTES_MAX: Final = 2 * 1024 * 1024
SMALL_BYTES: Final = 64 * 1024
"""Up to here the bytes bound the objects they can make; above, ELEMENTS_MAX does."""
ELEMENTS_MAX: Final = 200_000
INT_MAX: Final = 2**63 - 1
ANY_DEPTH_MAX: Final = 8

_To = Callable[[Any], Any]
_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack


def encode(message: Message) -> bytes:
    """The bytes of a message.

    Raises MessageTooLargeError beyond MESSAGE_BYTES_MAX, TypeError for an object that is no message of ours.
    """
    plan = _PLANS_BY_CLASS.get(type(message))
    if plan is None:
        raise TypeError(f"{type(message).__name__} is not a message of the link")
    data: bytes = _pack(plan.values(message))
    if len(data) > MESSAGE_BYTES_MAX:
        raise MessageTooLargeError(
            f"{type(message).__name__} of {len(data)} bytes exceeds {MESSAGE_BYTES_MAX}: "
            "split it over several messages or send its bytes through a stream"
        )
    return data


def decode(data: bytes | bytearray | memoryview) -> Message:
    """The message of these bytes.

    Raises UnknownTypeError (with the number) for a type of a newer protocol and MalformedMessageError for all else.
    """
    items = _unpack(data)
    if type(items) is not list or not items or type(items[0]) is not int:
        raise MalformedMessageError("a frame must be an array that starts with its type number")
    plan = _PLANS_BY_TYPE.get(items[0])
    if plan is None:
        raise UnknownTypeError(items[0])
    return plan.build(items, 1)  # type: ignore[no-any-return]


def _unpack(data: bytes | bytearray | memoryview) -> Any:
    if len(data) > MESSAGE_BYTES_MAX:
        raise MalformedMessageError(f"a frame of {len(data)} bytes exceeds {MESSAGE_BYTES_MAX}")
    if len(data) > SMALL_BYTES and not _few_elements(data):
        raise MalformedMessageError(f"a frame of {len(data)} bytes holds more than {ELEMENTS_MAX} elements")
    try:
        return msgpack.unpackb(
            data,
            raw=False,
            max_str_len=STRING_BYTES_MAX,
            max_bin_len=MESSAGE_BYTES_MAX,
            max_array_len=ARRAY_ITEMS_MAX,
            max_map_len=MAP_ITEMS_MAX,
            max_ext_len=0,
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise MalformedMessageError(
            f"the frame is not msgpack within our limits: {error or type(error).__name__}"
        ) from None


# --- how many elements large bytes hold: tiny elements would cost 60 times their bytes in memory ---

_FIXED_BYTES: Final = {
    **dict.fromkeys((0xC0, 0xC2, 0xC3), 1),
    **dict.fromkeys((0xCC, 0xD0), 2),
    **dict.fromkeys((0xCD, 0xD1), 3),
    **dict.fromkeys((0xCA, 0xCE, 0xD2), 5),
    **dict.fromkeys((0xCB, 0xCF, 0xD3), 9),
    **dict.fromkeys((0xDC, 0xDE), 3),
    **dict.fromkeys((0xDD, 0xDF), 5),
}
_LENGTH_BYTES: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}


def _few_elements(data: bytes | bytearray | memoryview) -> bool:
    """Whether the frame holds at most ELEMENTS_MAX elements; walks heads only, so large strings cost nothing."""
    position, elements, end = 0, 0, len(data)
    while position < end:
        elements += 1
        if elements > ELEMENTS_MAX:
            return False
        head = data[position]
        if 0xA0 <= head <= 0xBF:
            position += 1 + (head & 0x1F)
        elif head in _LENGTH_BYTES:
            width = _LENGTH_BYTES[head]
            position += 1 + width + int.from_bytes(data[position + 1 : position + 1 + width], "big")
        else:
            position += _FIXED_BYTES.get(head, 1)
    return True


# --- plans ---


class _Plan:
    """How one dataclass becomes a list of values, and how a list becomes the dataclass."""

    __slots__ = ("build", "values")

    def __init__(self, cls: type, type_number: int | None) -> None:
        hints = get_type_hints(cls)
        fields = dataclasses.fields(cls)
        names = tuple(field.name for field in fields)
        self.values = _encoder(names, tuple(_to_wire(hints[name]) for name in names), type_number)
        self.build = _decoder(cls, fields, tuple(_from_wire(hints[name]) for name in names))


def _encoder(
    names: tuple[str, ...], converters: tuple[_To | None, ...], type_number: int | None
) -> Callable[[Any], list[Any]]:
    head = [] if type_number is None else [type_number]
    special = [(i + len(head), convert) for i, convert in enumerate(converters) if convert is not None]
    get = operator.attrgetter(*names)
    single = len(names) == 1

    def values(record: Any) -> list[Any]:
        row = [*head, get(record)] if single else [*head, *get(record)]
        for i, convert in special:
            row[i] = convert(row[i])
        return row

    return values


def _decoder(
    cls: type, fields: tuple[dataclasses.Field[Any], ...], checks: tuple[_To, ...]
) -> Callable[[list[Any], int], Any]:
    required = sum(
        field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING for field in fields
    )
    names = tuple(field.name for field in fields)

    def build(items: list[Any], start: int) -> Any:
        given = len(items) - start
        if given < required:
            raise MalformedMessageError(f"{cls.__name__} has {given} fields, at least {required} are needed")
        arguments = []
        try:
            for i, check in zip(range(start, len(items)), checks, strict=False):
                arguments.append(check(items[i]))
        except _WrongTypeError as error:
            raise MalformedMessageError(f"{cls.__name__}.{names[len(arguments)]}: {error}") from None
        return cls(*arguments)

    return build


class _WrongTypeError(Exception):
    """A value of another type than its field; `build` adds the field's name."""

    def __init__(self, wanted: str, value: object) -> None:
        super().__init__(f"expected {wanted}, got {type(value).__name__}")


# --- one converter per field type; None where msgpack takes the value as it is ---


def _to_wire(hint: Any) -> _To | None:
    if _is_record(hint):
        return _plan_of(hint).values
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is list and (inner := _to_wire(arguments[0])) is not None:
        return _each_to_wire(inner)
    if origin in {Union, types.UnionType} and (inner := _to_wire(_without_none(arguments))) is not None:
        return _optional(inner)
    return None


def _each_to_wire(inner: _To) -> _To:
    return lambda items: [inner(item) for item in items]


def _optional(inner: _To) -> _To:
    return lambda value: None if value is None else inner(value)


def _from_wire(hint: Any) -> _To:
    simple = _SIMPLE.get(hint)
    if simple is not None:
        return simple
    if _is_record(hint):
        return _record_reader(hint)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _enum_reader(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is list:
        return _list_reader(_from_wire(arguments[0]))
    if origin is tuple:
        return _tuple_reader(tuple(_from_wire(argument) for argument in arguments))
    if origin is dict:
        return _dict_reader(_from_wire(arguments[1]))
    if origin in {Union, types.UnionType}:
        return _optional(_from_wire(_without_none(arguments)))
    raise TypeError(f"the codec has no rule for {hint}")


def _read_int(value: Any) -> int:
    if type(value) is not int or value > INT_MAX:
        raise _WrongTypeError("an integer below 2**63", value)
    return value


def _read_float(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int:
        return float(value)
    raise _WrongTypeError("a number", value)


def _read_bool(value: Any) -> bool:
    if type(value) is not bool:
        raise _WrongTypeError("a boolean", value)
    return value


def _read_str(value: Any) -> str:
    if type(value) is not str:
        raise _WrongTypeError("a string", value)
    return value


def _read_bytes(value: Any) -> bytes:
    if type(value) is not bytes:
        raise _WrongTypeError("bytes", value)
    return value


def _read_any(value: Any, depth: int = ANY_DEPTH_MAX) -> Any:
    if value is None or type(value) in {int, float, bool, str, bytes}:
        return value
    if depth == 0:
        raise _WrongTypeError(f"at most {ANY_DEPTH_MAX} levels", value)
    if type(value) is list:
        return [_read_any(item, depth - 1) for item in value]
    if type(value) is dict:
        return {_read_str(key): _read_any(item, depth - 1) for key, item in value.items()}
    raise _WrongTypeError("plain data", value)


_SIMPLE: Final[dict[Any, _To]] = {
    int: _read_int,
    float: _read_float,
    bool: _read_bool,
    str: _read_str,
    bytes: _read_bytes,
    Any: _read_any,
}


def _enum_reader(enum: type[StrEnum]) -> _To:
    members = {member.value: member for member in enum}

    def read(value: Any) -> StrEnum:
        member = members.get(value) if type(value) is str else None
        if member is None:
            raise _WrongTypeError(f"one of the {enum.__name__} values", value)
        return member

    return read


def _list_reader(inner: _To) -> _To:
    def read(value: Any) -> list[Any]:
        if type(value) is not list:
            raise _WrongTypeError("an array", value)
        return [inner(item) for item in value]

    return read


def _tuple_reader(inners: tuple[_To, ...]) -> _To:
    def read(value: Any) -> tuple[Any, ...]:
        if type(value) is not list or len(value) < len(inners):
            raise _WrongTypeError(f"an array of {len(inners)}", value)
        return tuple(inner(item) for inner, item in zip(inners, value, strict=False))

    return read


def _dict_reader(inner: _To) -> _To:
    def read(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _WrongTypeError("a map", value)
        return {_read_str(key): inner(item) for key, item in value.items()}

    return read


def _record_reader(cls: type) -> _To:
    build = _plan_of(cls).build

    def read(value: Any) -> Any:
        if type(value) is not list:
            raise _WrongTypeError(f"an array ({cls.__name__})", value)
        return build(value, 0)

    return read


def _without_none(arguments: tuple[Any, ...]) -> Any:
    (inner,) = (argument for argument in arguments if argument is not type(None))
    return inner


def _is_record(hint: Any) -> bool:
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


# --- tables, filled once ---

_RECORD_PLANS: Final[dict[type, _Plan]] = {}


def _plan_of(cls: type) -> _Plan:
    plan = _RECORD_PLANS.get(cls)
    if plan is None:
        plan = _RECORD_PLANS[cls] = _Plan(cls, None)
    return plan


def message_classes() -> Iterator[type[Message]]:
    """Every message class of the link, in the order of their numbers."""
    found = (value for value in vars(messages).values() if isinstance(value, type) and issubclass(value, Message))
    yield from sorted((cls for cls in found if cls is not Message), key=lambda cls: cls.TYPE)


_PLANS_BY_CLASS: Final[dict[type, _Plan]] = {cls: _Plan(cls, cls.TYPE) for cls in message_classes()}
_PLANS_BY_TYPE: Final[dict[int, _Plan]] = {cls.TYPE: plan for cls, plan in _PLANS_BY_CLASS.items()}  # type: ignore[attr-defined]
assert len(_PLANS_BY_TYPE) == len(_PLANS_BY_CLASS), "two messages share a TYPE number"
