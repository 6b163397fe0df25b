"""Fixtures of the client's tests: a server that speaks the contract, and a client of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from contract_server import ContractServer

from kernpool.sdk import Client


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ContractServer]:
    """A server of the contract that really runs commands."""
    root = tmp_path / "server"
    root.mkdir()
    with ContractServer(root) as running:
        yield running


@pytest.fixture
def client(server: ContractServer) -> Iterator[Client]:
    """A synchronous client of it."""
    with Client(server.url, "kpt_test") as made:
        yield made
