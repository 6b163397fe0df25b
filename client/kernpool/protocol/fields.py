"""Reading fields of JSON objects with their types checked: a wrong one is named, never passed on.

A field that is missing reads as its default: a newer client understands an older server, and the other way round.
"""

import binascii
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from kernpool.errors import ProtocolError

T = TypeVar("T")
Object = Mapping[str, Any]


def wrong(key: str, expected: str, found: object) -> ProtocolError:
    """Make the error for a field of the wrong type."""
    shown = repr(found)
    return ProtocolError(
        f"the server sent `{key}` as {shown if len(shown) <= 60 else shown[:57] + '...'}, expected {expected}",
        hint="Client and server may be of different versions: compare `kernpool --version` and `kernpool api status`.",
    )


def text(data: Object, key: str, default: str = "") -> str:
    """Read a text; null and missing give the default."""
    value = data.get(key, default)
    if type(value) is str:
        return value
    if value is None:
        return default
    raise wrong(key, "a text", value)


def name(data: Object, key: str) -> str:
    """Read a text that must be there."""
    value = data.get(key)
    if type(value) is str and value:
        return value
    raise wrong(key, "a text that is not empty", value)


def maybe_text(data: Object, key: str) -> str | None:
    """Read a text or None."""
    value = data.get(key)
    if value is None or type(value) is str:
        return value
    raise wrong(key, "a text or null", value)


def number(data: Object, key: str, default: float = 0.0) -> float:
    """Read a number."""
    value = data.get(key, default)
    if type(value) is float or type(value) is int:
        return value
    raise wrong(key, "a number", value)


def maybe_number(data: Object, key: str) -> float | None:
    """Read a number or None."""
    return None if data.get(key) is None else number(data, key)


def whole(data: Object, key: str, default: int = 0) -> int:
    """Read a whole number."""
    value = data.get(key, default)
    if type(value) is int:
        return value
    raise wrong(key, "a whole number", value)


def maybe_whole(data: Object, key: str) -> int | None:
    """Read a whole number or None."""
    return None if data.get(key) is None else whole(data, key)


def flag(data: Object, key: str, default: bool = False) -> bool:  # noqa: FBT001, FBT002 - a value, not a switch
    """Read true or false."""
    value = data.get(key, default)
    if type(value) is bool:
        return value
    raise wrong(key, "true or false", value)


def texts(data: Object, key: str) -> tuple[str, ...]:
    """Read a list of texts."""
    value = data.get(key, [])
    if isinstance(value, list) and all(type(item) is str for item in value):
        return tuple(value)
    raise wrong(key, "a list of texts", value)


def text_map(data: Object, key: str) -> dict[str, str]:
    """Read a map of texts to texts."""
    value = data.get(key, {})
    if isinstance(value, dict) and all(type(item) is str for item in value.values()):
        return value
    raise wrong(key, "a map of texts", value)


def count_map(data: Object, key: str) -> dict[str, int]:
    """Read a map of texts to whole numbers."""
    value = data.get(key, {})
    if isinstance(value, dict) and all(type(item) is int for item in value.values()):
        return value
    raise wrong(key, "a map of whole numbers", value)


def any_map(data: Object, key: str) -> dict[str, Any]:
    """Read a map of anything."""
    value = data.get(key, {})
    if isinstance(value, dict):
        return value
    raise wrong(key, "a map", value)


def record(data: Object, key: str, read: Callable[[Object], T]) -> T:
    """Read a nested object; a missing one reads as the empty object."""
    return read(any_map(data, key))


def maybe_record(data: Object, key: str, read: Callable[[Object], T]) -> T | None:
    """Read a nested object or None."""
    return None if data.get(key) is None else read(any_map(data, key))


def records(data: Object, key: str, read: Callable[[Object], T]) -> tuple[T, ...]:
    """Read a list of objects."""
    value = data.get(key, [])
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return tuple([read(item) for item in value])
    raise wrong(key, "a list of objects", value)


def octets(data: Object, key: str) -> bytes:
    """Read bytes that travel as base64."""
    value = text(data, key)
    if not value:
        return b""
    try:
        return binascii.a2b_base64(value, strict_mode=True)
    except (ValueError, binascii.Error) as error:
        raise wrong(key, "base64", value) from error


def answer_object(document: object) -> Object:
    """Take a whole answer that must be an object."""
    if isinstance(document, dict):
        return document
    raise wrong("(the whole answer)", "an object", document)
