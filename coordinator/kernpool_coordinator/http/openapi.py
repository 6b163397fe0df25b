"""The OpenAPI 3.1 document, made from the route table and the pydantic models; nothing is written twice."""

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from pydantic_core import to_json

import kernpool
from kernpool.bodies import Problem
from kernpool_coordinator.http.route import Media, Route

_REF = "#/components/schemas/{model}"


@cache
def document(routes: tuple[Route, ...]) -> bytes:
    """The document as JSON."""
    return to_json(describe(routes))


def describe(routes: Sequence[Route]) -> dict[str, Any]:
    """The document of `routes`."""
    schemas = _schemas(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Kernpool coordinator", "version": kernpool.__version__},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {
                "Problem": {"description": "What went wrong, and what to do.", "content": _content(Media.JSON, Problem)}
            },
        },
    }


def _schemas(routes: Sequence[Route]) -> dict[str, Any]:
    """Every model that is taken or given, under its name."""
    modes: dict[type[BaseModel], JsonSchemaMode] = {Problem: "serialization"}
    for route in routes:
        if route.answer is not None:
            modes.setdefault(route.answer, "serialization")
        if route.last is not None:
            modes.setdefault(route.last, "serialization")
        if route.body is not None:
            modes[route.body] = "validation"  # it decides where a model is both taken and given: it asks for less
    _, definitions = models_json_schema(list(modes.items()), ref_template=_REF)
    schemas: dict[str, Any] = definitions["$defs"]
    return schemas


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": operation_id(route),
        "summary": route.summary,
        "parameters": [*_path_parameters(route), *_query_parameters(route)],
        "responses": {str(_status(route)): _good(route), "default": {"$ref": "#/components/responses/Problem"}},
    }
    if route.verb is None:
        operation["security"] = []
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": _content(Media.JSON, route.body)}
    elif route.takes_bytes:
        operation["requestBody"] = {"required": True, "content": _content(Media.BYTES, None)}
    return operation


def operation_id(route: Route) -> str:
    """`get_sandboxes_sandbox_files_list`: unique because method and path are."""
    path = route.path.removeprefix("/api/v1")
    return "_".join([route.method.lower(), *re.findall(r"[a-z0-9]+", path.lower())])


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in route.params]


def _query_parameters(route: Route) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    schema = route.query.model_json_schema()
    required = schema.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _inline(field, schema)}
        for name, field in schema.get("properties", {}).items()
    ]


def _inline(field: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter's schema with its references resolved: query models are not components."""
    if "$ref" in field:
        resolved: dict[str, Any] = schema["$defs"][field["$ref"].rsplit("/", 1)[1]]
        return resolved
    return field


def _status(route: Route) -> int:
    return 101 if route.media is Media.WEBSOCKET else route.status


def _good(route: Route) -> dict[str, Any]:
    """The answer when all went well."""
    match route.media:
        case Media.NOTHING:
            return {"description": "Done."}
        case Media.WEBSOCKET:
            return {"description": "A WebSocket follows."}
        case _:
            content = _content(route.media, route.answer, page=route.page)
            if route.last is not None:
                lines = [_REF.format(model=model.__name__) for model in (route.answer, route.last) if model is not None]
                content = {route.media.value: {"schema": {"oneOf": [{"$ref": line} for line in lines]}}}
            if route.also is not None:
                content |= _content(route.also, route.answer)
            return {"description": route.summary, "content": content}


def _content(media: Media, model: type[BaseModel] | None, *, page: bool = False) -> dict[str, Any]:
    """A media type object."""
    if model is None:
        return {media.value: {"schema": {"type": "object"} if media is Media.JSON else {}}}
    schema: dict[str, Any] = {"$ref": _REF.format(model=model.__name__)}
    if page:
        schema = {
            "type": "object",
            "required": ["items", "next"],
            "properties": {"items": {"type": "array", "items": schema}, "next": {"type": "string"}},
        }
    return {media.value: {"schema": schema}}
