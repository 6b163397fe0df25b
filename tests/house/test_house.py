"""The house rules: linters, types, floors, and a wheel that is whole."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

HOUSE = Path(__file__).parents[2]
ROOMS = ["agent", "client", "coordinator", "mesh", "sandbox", "tls"]
BIN = Path(sys.executable).parent


def run(*command: str, **environment: str) -> None:
    """Run a tool in the house; its output is the failure's message."""
    env = {**os.environ, **environment}
    done = subprocess.run(command, cwd=HOUSE, capture_output=True, text=True, env=env, timeout=280, check=False)
    if done.returncode:
        pytest.fail(f"{' '.join(command)}\n{done.stdout[-6000:]}{done.stderr[-2000:]}", pytrace=False)


def test_ruff_finds_nothing() -> None:
    run(str(BIN / "ruff"), "check", ".")


def test_the_code_is_formatted() -> None:
    run(str(BIN / "ruff"), "format", "--check", ".")


@pytest.mark.timeout(300)
def test_types_hold() -> None:
    run(str(BIN / "mypy"), *ROOMS, "tests", "benchmarks", "examples", "packaging/build_hook.py")


@pytest.mark.timeout(120)
def test_a_room_imports_only_from_lower_floors() -> None:
    path = os.pathsep.join(str(HOUSE / room) for room in ROOMS)
    run(str(BIN / "lint-imports"), PYTHONPATH=path)


def test_packaging_never_shadows_the_package_of_that_name() -> None:
    """With an __init__.py there, `python -m build` run in this folder would import it in place of PyPI's packaging."""
    assert not (HOUSE / "packaging" / "__init__.py").exists()


def shipped_modules() -> set[str]:
    """List every source file of the rooms, as the wheel should hold it."""
    return {
        str(file.relative_to(HOUSE / room))
        for room in ROOMS
        for file in (HOUSE / room).rglob("*")
        if file.is_file()
        and file.suffix in {".py", ".c", ".h", ".mako", ".ini", ".typed"}
        and "__pycache__" not in file.parts
    }


@pytest.mark.timeout(300)
def test_the_wheel_holds_every_module_and_a_built_kp_init(tmp_path: Path) -> None:
    """A sub-package that is forgotten in pyproject.toml works in the checkout and fails on the user's machine."""
    clone = tmp_path / "clone"
    shutil.copytree(
        HOUSE, clone, ignore=shutil.ignore_patterns(".git", ".venv", "_bin", "__pycache__", ".*_cache", "dist")
    )
    done = subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(tmp_path / "dist"), str(clone)],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert shipped_modules() - names == set()
    assert "kernpool_sandbox/_bin/kp-init" in names
    assert "none-any" not in wheel.name, "the wheel carries a binary: its tag must name the platform"


def tracked(*patterns: str) -> list[Path]:
    """List the files that git tracks, or all where there is no git."""
    done = subprocess.run(["git", "ls-files", *patterns], cwd=HOUSE, capture_output=True, text=True, check=False)
    return [HOUSE / name for name in done.stdout.splitlines() if (HOUSE / name).is_file()]


def test_no_sleep_waits_for_a_result() -> None:
    """A sleep is either too short on a busy machine or too long on every other: wait for the event."""
    pattern = r"(time|asyncio)\.sleep\((0\.[0-9]*[1-9]|[1-9])"
    done = subprocess.run(["grep", "-rnE", pattern, "tests"], cwd=HOUSE, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if "test_house.py" not in line]
    assert lines == []


def test_every_module_says_what_it_is_for() -> None:
    """A stranger reads the first line of a file and knows whether to go on."""
    silent = [
        str(file.relative_to(HOUSE))
        for file in tracked("*.py")
        if not file.read_text(encoding="utf-8").lstrip().startswith(('"""', "#!"))
    ]
    assert silent == []


def test_links_in_the_docs_lead_somewhere() -> None:
    """A page moved or renamed leaves dead links behind."""
    links = [
        (page, target)
        for page in tracked("*.md")
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text(encoding="utf-8"))
    ]
    dead = [f"{page.relative_to(HOUSE)}: {target}" for page, target in links if not (page.parent / target).exists()]
    assert dead == []
