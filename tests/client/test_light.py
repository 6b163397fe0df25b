"""What a command loads: start-up is most of what a person waits for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from contract_server import ContractServer
from transcripts import environment

HEAVY = {
    "aiohttp", "asyncio", "pydantic", "pydantic_core", "rich", "yaml", "email", "http.client", "ssl", "subprocess",
    "urllib.request", "kernpool.aio", "kernpool.spec", "kernpool.bodies", "kernpool.embedded.stop", "multiprocessing",
    "concurrent.futures", "logging", "tempfile", "difflib", "sqlalchemy", "msgpack", "unittest", "hashlib",
}  # fmt: skip


def loaded(directory: Path, *words: str, **env: str) -> set[str]:
    """Run a command as the console script does, and give the modules that it loaded."""
    code = (
        "import sys; before = set(sys.modules)\n"
        "from kernpool.cli import main\n"
        f"status = main({list(words)!r})\n"
        "names = sorted(set(sys.modules) - before)\n"
        "import json; print(json.dumps([status, names]), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {PATHS!r}\n{code}"],
        env=environment(directory, **env), capture_output=True, text=True, check=True, timeout=50,
    )  # fmt: skip
    status, modules = json.loads(done.stderr.splitlines()[-1])
    assert status == 0
    return set(modules)


PATHS = [path for path in sys.path if path]


def test_version_loads_nothing_but_itself(tmp_path: Path) -> None:
    """`kernpool --version` in a prompt or a Makefile."""
    assert {name for name in loaded(tmp_path, "--version") if name.startswith("kernpool")} == {
        "kernpool",
        "kernpool.cli",
    }
    assert loaded(tmp_path, "--version") & (HEAVY | {"argparse", "json", "socket", "dataclasses", "pathlib"}) == set()


@pytest.mark.parametrize(
    "words", [["status"], ["queue"], ["node", "ls"], ["launch", "-q", "--", "echo hi"], ["sandbox", "ls"]]
)
def test_everyday_commands_load_neither_aiohttp_nor_pydantic_nor_rich(
    server: ContractServer, tmp_path: Path, words: list[str]
) -> None:
    modules = loaded(tmp_path, *words, KERNPOOL_API_URL=server.url, KERNPOOL_API_TOKEN="kpt_test")
    assert modules & HEAVY == set()


def test_importing_kernpool_costs_nothing(tmp_path: Path) -> None:
    code = f"import sys; sys.path[:0] = {PATHS!r}; import kernpool; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code],
        env=environment(tmp_path), capture_output=True, text=True, check=True,
    )  # fmt: skip
    ours = {name for name in done.stdout.split() if name.startswith("kernpool")}
    assert ours == {"kernpool"}


def test_every_public_name_can_be_had() -> None:
    import kernpool

    assert set(dir(kernpool)) == set(kernpool.__all__)
    for name in kernpool.__all__:
        assert getattr(kernpool, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        kernpool.nonsense  # noqa: B018
