"""The pages for users are true of a whole install: what they show is typed, in their order, and compared."""

import json
import re
import socket
from pathlib import Path

import pytest
from embedded_install import HOUSE, Install
from transcripts import environment, play, steps_of


@pytest.mark.timeout(180)
@pytest.mark.parametrize("page", ["cli.md", "quickstart.md"])
def test_every_transcript_of_the_page_is_true(install: Install, page: str, tmp_path: Path) -> None:
    """A newcomer types what the page shows: another answer costs more trust than no page."""
    if not json.loads(install.kernpool("node", "ls", "--json"))["items"][0]["isolation"]:
        pytest.skip("this machine allows no sandboxes")
    if page == "quickstart.md":
        install.kernpool("api", "stop", "--yes")  # its first command starts what is missing
    directory = tmp_path / "work"
    directory.mkdir()
    steps, files = steps_of(HOUSE / "docs" / page)
    for step in steps:
        step.command = re.sub(r"\bbox\b", socket.gethostname(), step.command)
        step.expected = [re.sub(r"\bbox\b", socket.gethostname(), line) for line in step.expected]
    complaints = play(steps, files, directory, environment(directory, KERNPOOL_HOME=str(install.home)))
    assert len(steps) > 10
    assert not complaints, "\n\n".join(complaints)
