"""The OpenAPI document is valid and tells of every route."""

import re
from typing import Any

import pytest
from running import Coordinator

from kernpool_coordinator.http.handlers import ROUTES
from kernpool_coordinator.http.openapi import describe


def _references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*map(_references, node.values())) if node else own
    return set().union(*map(_references, node)) if isinstance(node, list) and node else set()


def test_the_document_passes_a_validator() -> None:
    """Clients are generated from it."""
    validator = pytest.importorskip("openapi_spec_validator", reason="openapi-spec-validator is not installed")
    validator.validate(describe(ROUTES))


def test_every_reference_leads_somewhere_and_every_schema_is_used() -> None:
    """A renamed model leaves no dangling name."""
    document = describe(ROUTES)
    schemas = set(document["components"]["schemas"])
    targets = {name.rpartition("/")[2] for name in _references(document) if "/schemas/" in name}
    assert targets == schemas


def test_every_operation_has_an_id_of_its_own_and_its_path_parts() -> None:
    """Generated function names do not collide."""
    document = describe(ROUTES)
    ids = []
    for path, operations in document["paths"].items():
        for operation in operations.values():
            ids.append(operation["operationId"])
            named = {parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"}
            assert named == set(re.findall(r"{(\w+)}", path))
            assert "default" in operation["responses"]
    assert len(ids) == len(set(ids)) == len(ROUTES)


async def test_it_is_served(coordinator: Coordinator) -> None:
    """curl .../openapi.json."""
    document = await coordinator.json("GET", "/api/v1/openapi.json")
    assert document["openapi"] == "3.1.0"
    assert set(document["paths"]) == {route.path for route in ROUTES}
    line = document["paths"]["/api/v1/sandboxes"]["post"]["responses"]["200"]["content"]["application/x-ndjson"]
    assert line["schema"] == {
        "oneOf": [{"$ref": "#/components/schemas/SandboxItemBody"}, {"$ref": "#/components/schemas/SandboxesDone"}]
    }
