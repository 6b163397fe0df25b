"""The SDK's page is true: its code runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from contract_server import ContractServer
from transcripts import HOUSE, environment

PAGE = (HOUSE / "docs" / "sdk.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_every_piece_of_code_on_the_page_runs(server: ContractServer, tmp_path: Path, number: int) -> None:
    """Copied into a file and run as a person would, with warnings as errors."""
    code = BLOCKS[number]
    if "connect(8080)" in code:
        pytest.skip("it needs port 8080 of this machine, which the contract's server does not isolate")
    if "import kernpool" not in code and "from kernpool" not in code:
        code = f"import kernpool\n{code}"
    env = environment(tmp_path, KERNPOOL_API_URL=server.url, KERNPOOL_API_TOKEN="kpt_test")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_name_on_the_page_exists() -> None:
    """Names in the tables of calls and errors."""
    import kernpool

    errors = re.findall(r"`([A-Z]\w+Error)`", PAGE)
    assert len(errors) > 10
    for name in errors:
        assert hasattr(kernpool, name) or name in dir(__builtins__) or name == "TimeoutError", name
    for name in re.findall(r"`Sandbox\.files\.([\w/]+)`", PAGE)[0].split("/"):
        from kernpool.sdk.files import Files

        assert hasattr(Files, name), name
