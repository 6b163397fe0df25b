"""Settings and the owner's ceiling: mistakes are told with file, key and what was expected."""

import argparse
import os
from pathlib import Path

import pytest

from kernpool_agent import ceiling, config
from kernpool_agent.ceiling import Ceiling
from kernpool_agent.config import FIELDS, Config
from kernpool_agent.errors import ConfigError, FatalError, RefusedError
from kernpool_mesh.messages import Template


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_file_and_flags_make_the_settings_and_flags_win(tmp_path: Path) -> None:
    """A packaged file, and a flag for a try."""
    path = written(tmp_path / "agent.toml", 'coordinator = "https://10.0.0.1:46581"\nlabels = {rack = "a1"}\n')
    settings = config.load(path, {"coordinator": "https://[::1]:9/", "creates_at_once": "7"})
    assert settings.coordinator == "https://[::1]:9"
    assert settings.labels == (("rack", "a1"),)
    assert settings.creates_at_once == 7
    assert settings.work_dir == settings.state_dir / "work"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cordinator = 'x'", "unknown setting cordinator; did you mean coordinator?"),
        ("zzz = 1", "unknown setting zzz; `kp-agent run --help` lists the settings"),
        ("coordinator = 'http://10.0.0.1'", r"coordinator = 'http://10.0.0.1': expected https://HOST:PORT"),
        ("coordinator = 5", "coordinator = 5: expected text"),
        ("dial_timeout_s = 'soon'", "dial_timeout_s = 'soon': expected a number"),
        ("dial_timeout_s = 1e9", "expected a number from 0.5 to 120"),
        ("creates_at_once = 2.5", "creates_at_once = 2.5: expected a whole number"),
        ("creates_at_once = true", "creates_at_once = True: expected a whole number"),
        ("gpu = 'no'", "gpu = 'no': expected one of auto, off"),
        ("data_listen = 'everywhere'", "expected HOST:PORT"),
        ("labels = ['a']", "expected names with text values"),
        ("= broken", "not TOML"),
    ],
)
def test_a_mistake_in_the_file_is_told_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    """A person edits agent.toml by hand."""
    path = written(tmp_path / "agent.toml", text)
    with pytest.raises(ConfigError, match=told) as caught:
        config.load(path, {})
    assert str(path) in str(caught.value)


def test_bytes_that_are_no_text_are_told(tmp_path: Path) -> None:
    """A file saved in Latin-1."""
    path = tmp_path / "agent.toml"
    path.write_bytes(b'name = "M\xfcller"\n')
    with pytest.raises(ConfigError, match="not TOML"):
        config.load(path, {})


def test_every_setting_has_a_flag_and_a_reason() -> None:
    """`kp-agent run --help` is the table's print."""
    parser = argparse.ArgumentParser()
    config.add_flags(parser)
    text = " ".join(parser.format_help().split())
    for name, row in FIELDS.items():
        assert "--" + name.replace("_", "-") in text
        assert len(row.metadata["why"]) > 10
    assert vars(parser.parse_args([])) == {}, "flags that were not given are absent, so that the file counts"
    assert config.load(None, {}) == Config()


# --- the owner's ceiling ---


def test_a_missing_ceiling_allows_the_default_and_no_root_jobs(tmp_path: Path) -> None:
    """Most nodes have no node.toml."""
    assert ceiling.load(tmp_path / "node.toml") == Ceiling()
    assert not Ceiling().allow_root_jobs


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("job_usr = 'x'", "unknown key job_usr; did you mean job_user?"),
        ("stated = true", "unknown key stated"),
        ("allow_gpu = 'yes'", "allow_gpu = 'yes': expected true or false"),
        ("image_dirs = ['relative']", "expected a list of absolute paths"),
        ("job_user = 5", "expected text"),
        ("allow_gpu = tru", "not TOML"),
    ],
)
def test_a_mistake_in_the_ceiling_stops_the_agent(tmp_path: Path, text: str, told: str) -> None:
    """An owner's file with a slip must not be read as permission."""
    path = written(tmp_path / "node.toml", text)
    with pytest.raises(ConfigError, match=told):
        ceiling.load(path, must_be_roots=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="giving files away needs root")
def test_a_ceiling_that_others_may_write_is_no_ceiling(tmp_path: Path) -> None:
    """Whoever can write it could allow himself root."""
    path = written(tmp_path / "node.toml", "allow_root_jobs = true\n")
    path.chmod(0o664)
    with pytest.raises(ConfigError, match="must belong to root"):
        ceiling.load(path)
    path.chmod(0o644)
    assert ceiling.load(path).allow_root_jobs
    os.chown(path, 1000, 0)
    with pytest.raises(ConfigError, match="must belong to root"):
        ceiling.load(path)


def test_templates_are_held_to_the_ceiling(tmp_path: Path) -> None:
    """A coordinator that was taken over asks for the host image, or for an image by a link out of its directory."""
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "link").symlink_to("/etc")
    with pytest.raises(RefusedError, match="allow_host_image"):
        Ceiling(allow_host_image=False).check_template(Template())
    with pytest.raises(RefusedError, match="allow_sandboxes"):
        Ceiling(allow_sandboxes=False).check_template(Template())
    bounded = Ceiling(image_dirs=(str(tmp_path / "images"),))
    bounded.check_template(Template(image=str(tmp_path / "images" / "debian")))
    for image in ("/srv/other", str(tmp_path / "images" / ".." / "x"), str(tmp_path / "images" / "link")):
        with pytest.raises(RefusedError, match="is not below"):
            bounded.check_template(Template(image=image))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can choose")
def test_jobs_run_as_who_started_an_embedded_agent_and_never_as_root_by_default_on_an_install() -> None:
    """`sudo kernpool api start` gives jobs to the person; a system install to the job user alone."""
    assert ceiling.job_user(Ceiling(), "starter", {"SUDO_UID": "65534"}).uid == 65534
    assert ceiling.job_user(Ceiling(), "starter", {}).uid == 0
    assert ceiling.job_user(Ceiling(job_user="nobody"), "job_user", {"SUDO_UID": "0"}).name == "nobody"
    owned = Ceiling(job_user="nobody", stated=True)
    assert ceiling.job_user(owned, "starter", {}).name == "nobody", "the owner's file stands above the starter"
    with pytest.raises(FatalError, match="allow_root_jobs"):
        ceiling.job_user(Ceiling(job_user="root", stated=True), "job_user", {})
    assert ceiling.job_user(Ceiling(job_user="root", stated=True, allow_root_jobs=True), "job_user", {}).uid == 0
    assert ceiling.job_user(Ceiling(job_user="nobody"), "job_user", {}).uid != 0
    with pytest.raises(FatalError, match="useradd --system kp-no-such-user"):
        ceiling.job_user(Ceiling(job_user="kp-no-such-user"), "job_user", {})
