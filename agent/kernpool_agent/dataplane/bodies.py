"""Reading command bodies without pydantic (agents stay small): strict, with the key and what was expected in errors."""

import base64
import binascii
import json
from collections.abc import Callable
from typing import Any, Final

from kernpool_agent.dataplane.problems import ProblemError, invalid
from kernpool_mesh.messages import Command, CommandResult

BODY_BYTES_MAX: Final = 16 << 20
"""A command body with its base64 stdin; larger stdin goes through the WebSocket form."""
ARGS_MAX: Final = 4096
OUTPUT_BYTES_MAX: Final = 8 << 20
TIMEOUT_S_MAX: Final = 30 * 86400.0


def command_from_json(data: bytes | str) -> Command:
    """Turn a CommandBody into a Command; raises ProblemError (400) naming the key."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise invalid(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise invalid('the body must be a JSON object such as {"argv": ["true"]}')
    unknown = sorted(set(body) - set(_FIELDS))
    if unknown:
        raise invalid(f"unknown key {unknown[0]!r}", f"known keys: {', '.join(_FIELDS)}")
    if "argv" not in body:
        raise invalid("the key 'argv' is missing")
    values = {_FIELDS[key][0]: _FIELDS[key][1](key, value) for key, value in body.items()}
    return Command(**values)


def result_to_json(result: CommandResult) -> dict[str, Any]:
    """Give a CommandResultBody without the output: it was streamed."""
    return {
        "reason": result.reason.value,
        "exit_code": result.exit_code,
        "detail": result.detail,
        "first_output_ms": None if result.first_output_ms < 0 else round(result.first_output_ms, 3),
    }


def _argv(key: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not 0 < len(value) <= ARGS_MAX:
        raise _expected(key, f"a list of 1 to {ARGS_MAX} strings", value)
    return [_text(f"{key}[{at}]", item) for at, item in enumerate(value)]


def _env(key: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise _expected(key, "an object of strings", value)
    for name, item in value.items():
        _text(f"{key}.{name}", item)
        if not name or "=" in name or "\0" in name:
            raise invalid(f"{key}: {name!r} is not a name of an environment variable")
    return value


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _expected(key, "a string", value)
    if "\0" in value:
        raise invalid(f"{key}: a NUL byte cannot be passed to a program")
    try:
        # Lone surrogates U+DC80..DCFF stand for raw bytes, as Python's own file names do; others stand for nothing.
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise invalid(f"{key}: a lone surrogate is no text") from None
    return value


def _seconds(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= TIMEOUT_S_MAX:
        raise _expected(key, f"seconds from 0 to {TIMEOUT_S_MAX:.0f}", value)
    return float(value)


def _bytes_max(key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= OUTPUT_BYTES_MAX:
        raise _expected(key, f"an integer from 0 to {OUTPUT_BYTES_MAX}", value)
    return value


def _base64(key: str, value: Any) -> bytes:
    try:
        return base64.b64decode(_text(key, value), validate=True)
    except (binascii.Error, ValueError):
        raise invalid(f"{key}: not base64") from None


def _expected(key: str, what: str, value: Any) -> ProblemError:
    return invalid(f"{key}: expected {what}, not {type(value).__name__}")


_FIELDS: Final[dict[str, tuple[str, Callable[[str, Any], Any]]]] = {
    "argv": ("argv", _argv),
    "env": ("env", _env),
    "cwd": ("cwd", _text),
    "user": ("user", _text),
    "timeout_s": ("timeout_s", _seconds),
    "stdin_b64": ("stdin", _base64),
    "output_bytes_max": ("output_bytes_max", _bytes_max),
}
"""Key of a CommandBody -> (field of Command, its reader)."""
