"""Fixtures of the stories."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from embedded_install import Install, mounts_of, processes_of


@pytest.fixture
def install() -> Iterator[Install]:
    """Give an install that was started; at the end it is stopped and must leave nothing behind."""
    # Short, since sockets lie below it; not pytest's tmp_path.
    home = Path(tempfile.mkdtemp(prefix="kp-", dir="/tmp"))
    story = Install(home)
    try:
        story.start()
        yield story
    finally:
        done = story.run("api", "stop", "--yes")
        left = [*processes_of(home), *mounts_of(home)]
        logs = story.logs()
        shutil.rmtree(home, ignore_errors=True)
        assert done.returncode == 0, f"api stop: {done.stdout}{done.stderr}\n{logs}"
        assert left == [], f"left behind after `api stop`\n{logs}"
