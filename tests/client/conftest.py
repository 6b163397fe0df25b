"""Fixtures of the client's tests: a server that speaks the contract, and a client of it."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kernpool.sdk import Client


def helper(name: str) -> ModuleType:
    """Import a module that stands beside the tests (importmode=importlib puts no folder on the path)."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Any]:
    """A server of the contract that really runs commands."""
    root = tmp_path / "server"
    root.mkdir()
    with helper("contract_server").ContractServer(root) as running:
        yield running


@pytest.fixture
def client(server: Any) -> Iterator[Client]:
    """A synchronous client of it."""
    with Client(server.url, "kpt_test") as made:
        yield made
