"""The pages for users are true: what they show is typed and compared."""

from pathlib import Path

from contract_server import ContractServer
from transcripts import HOUSE, environment, play, steps_of


def test_every_transcript_of_the_command_line_page_is_true(server: ContractServer, tmp_path: Path) -> None:
    """A page that shows what the tool no longer does is worse than none."""
    directory = tmp_path / "work"
    directory.mkdir()
    steps, files = steps_of(HOUSE / "docs" / "cli.md")
    env = environment(directory, KERNPOOL_API_URL=server.url, KERNPOOL_API_TOKEN="kpt_test")
    complaints = play(steps, files, directory, env)
    assert len(steps) > 50
    assert not complaints, "\n\n".join(complaints)
