"""Turns query strings and JSON bodies into models, and pydantic's complaints into details that name field and fix."""

import difflib
import re
import types
import typing
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, TypeVar

from multidict import MultiMapping
from pydantic import BaseModel, ValidationError

from kernpool_coordinator.errors import InvalidError
from kernpool_coordinator.http.route import QueryModel

DETAILS_MAX = 50
_SEE_OPENAPI = "GET /api/v1/openapi.json describes every body."

ModelT = TypeVar("ModelT", bound=BaseModel)
QueryT = TypeVar("QueryT", bound=QueryModel)


def parse_body(model: type[ModelT], data: bytes) -> ModelT:
    """The body as `model`; raises InvalidError with {line, column, key, message} each."""
    if not data.strip():
        raise InvalidError(f"The body is empty, expected a JSON object ({model.__name__}).", hint=_SEE_OPENAPI)
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise _invalid(model, error, "body") from error


def parse_query(model: type[QueryT], query: MultiMapping[str]) -> QueryT:
    """The query string as `model`; a parameter may come twice only where the model has a list."""
    lists = _list_fields(model)
    values: dict[str, Any] = {}
    for key in query:
        given = query.getall(key)
        if key not in lists and len(given) > 1:
            raise InvalidError(f"The query parameter `{key}` is given {len(given)} times, expected once.")
        values[key] = given if key in lists else given[0]
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise _invalid(model, error, "query") from error


@cache
def _list_fields(model: type[BaseModel]) -> frozenset[str]:
    return frozenset(
        name for name, field in model.model_fields.items() if typing.get_origin(field.annotation) in (list, tuple)
    )


def _invalid(model: type[BaseModel], error: ValidationError, where: str) -> InvalidError:
    """Our error for pydantic's: the first complaint is the message, all of them the details."""
    complaints = error.errors(include_url=False, include_context=False, include_input=False)
    details = [_detail(model, complaint["type"], complaint["loc"], complaint["msg"]) for complaint in complaints]
    first = details[0]
    place = f"`{first['key']}` in the {where}" if first["key"] else f"The {where}"
    more = f" ({len(details) - 1} more in `details`)" if len(details) > 1 else ""
    return InvalidError(f"{place}: {first['message']}{more}.", hint=_SEE_OPENAPI, details=details[:DETAILS_MAX])


def _detail(model: type[BaseModel], kind: str, loc: tuple[int | str, ...], message: str) -> dict[str, Any]:
    """{line, column, key, message} of one complaint; line and column are 0 where they are not known."""
    line = column = 0
    if kind == "json_invalid" and (at := re.search(r" at line (\d+) column (\d+)$", message)):
        line, column, message = int(at[1]), int(at[2]), message[: at.start()]
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(str(loc[-1]), _names_at(model, loc[:-1]), n=1)
        message = "unknown key" + (f"; did you mean `{near[0]}`?" if near else "")
    # Text before the first "." of a pydantic sentence starts with a capital; ours goes on after a colon.
    return {"line": line, "column": column, "key": key_of(loc), "message": message[:1].lower() + message[1:]}


def key_of(loc: Iterable[int | str]) -> str:
    """A field's path as people write it: `command.argv[0]`."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else str(part))
    return text


def _names_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """The keys that are allowed at `loc`, empty when there is no model there."""
    at: Any = model
    for part in loc:
        if isinstance(part, str):
            field = at.model_fields.get(part) if _is_model(at) else None
            at = field.annotation if field is not None else at
        at = next(_models_in(at), None)
        if at is None:
            return []
    return list(at.model_fields)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models inside an annotation such as `list[Model] | None`."""
    if _is_model(annotation):
        yield annotation
    elif typing.get_origin(annotation) in (list, dict, tuple, types.UnionType, typing.Union, typing.Annotated):
        for part in typing.get_args(annotation):
            yield from _models_in(part)


def _is_model(thing: Any) -> bool:
    return isinstance(thing, type) and issubclass(thing, BaseModel)
