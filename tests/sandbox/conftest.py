"""Fixtures of the sandbox stories."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest

USER_UID = 1001


def user_python() -> str:
    """Return an interpreter of this version that an ordinary user can start, with this checkout's modules."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, shutil.which("python3", path="/usr/bin:/usr/local/bin") or ""):
        if not candidate:
            continue
        probe = [candidate, "-c", "import sys, kernpool_sandbox.runtime; print('%d.%d' % sys.version_info[:2])"]
        try:
            done = subprocess.run(probe, capture_output=True, text=True, check=False, **user_options())
        except PermissionError:
            continue
        if done.returncode == 0 and done.stdout.strip() == version:
            return candidate
    pytest.skip(f"uid {USER_UID} can start no Python {version} with this checkout's modules")


def user_options() -> dict[str, object]:
    """Return what makes subprocess start a program as an ordinary user."""
    env = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PATH": os.environ["PATH"], "HOME": "/"}
    return {"user": USER_UID, "group": USER_UID, "extra_groups": [], "env": env}


@pytest.fixture
def as_user() -> Callable[..., str]:
    """Run a script as an ordinary user and return what it prints."""
    if os.geteuid() != 0:
        pytest.skip("becomes another user, which needs root")
    python = user_python()

    def run(script: str, *arguments: str) -> str:
        done = subprocess.run(
            [python, "-c", script, *arguments], capture_output=True, text=True, check=False, **user_options()
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
