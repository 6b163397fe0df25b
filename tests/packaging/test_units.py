"""The systemd units: understood by systemd, and fit for what the agent is and is not."""

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).parents[2] / "packaging" / "systemd"
FILES = sorted(UNITS.rglob("*.service"))


class Settings(configparser.RawConfigParser):
    """Unit files as ini; keys keep their case."""

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def read(name: str) -> configparser.SectionProxy:
    settings = Settings(strict=False)
    settings.read(UNITS / name)
    return settings["Service"]


def test_all_units_are_there() -> None:
    """System and user installs of a node differ in paths alone; a coordinator of a user is the embedded one."""
    names = {str(file.relative_to(UNITS)) for file in FILES}
    nodes = {"kp-agent.service", "kp-work.service", "user/kp-agent.service", "user/kp-work.service"}
    assert names == {"kp-coordinator.service", *nodes}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(UNITS)))
def test_systemd_understands_the_unit(file: Path, tmp_path: Path) -> None:
    """A misspelt key is a warning that nobody reads, and a protection that is not there."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("this machine has no systemd-analyze")
    for name in ("kp-agent", "kp-coordinator"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    for unit in file.parent.glob("*.service"):  # both, since one wants the other
        text = unit.read_text().replace("/usr/bin/kp-", f"{tmp_path}/kp-")
        text = text.replace("%h/.local/bin/kp-", f"{tmp_path}/kp-")
        # Where the manual pages or the network target are not installed, they are no fault of ours.
        lines = [line for line in text.splitlines() if not line.startswith("Documentation=")]
        (tmp_path / unit.name).write_text("\n".join(lines).replace("network-online.target ", "") + "\n")
    done = subprocess.run(
        [analyze, "verify", "--man=no", *(["--user"] if file.parent.name == "user" else []), str(tmp_path / file.name)],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
        env={"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    ours = [line for line in done.stderr.splitlines() if "kp-" in line]
    assert ours == []


@pytest.mark.parametrize("prefix", ["", "user/"])
def test_work_outlives_the_agent_and_its_own_spawner(prefix: str) -> None:
    """`systemctl restart kp-agent`, an upgrade, or a crash of either must end no job."""
    work, agent = read(f"{prefix}kp-work.service"), read(f"{prefix}kp-agent.service")
    assert work["Delegate"] == "yes"
    assert work["KillMode"] == "process"
    assert work["OOMPolicy"] == "continue"
    assert "Delegate" not in agent
    assert agent["Type"] == "notify"
    assert int(agent["WatchdogSec"]) > 0
    assert agent["Restart"] == "always"
    settings = Settings(strict=False)
    settings.read(UNITS / f"{prefix}kp-agent.service")
    assert "kp-work.service" in settings["Unit"]["Wants"]
    assert "Requires" not in settings["Unit"], "stopping kp-work must not stop the agent"


def test_both_read_the_same_settings_and_state() -> None:
    """The agent looks for the spawner where the work unit put it."""
    for prefix in ("", "user/"):
        for name in ("--config", "--state-dir"):
            values = [
                words[words.index(name) + 1] if name in words else ""
                for unit in ("kp-work", "kp-agent")
                if (words := read(f"{prefix}{unit}.service")["ExecStart"].split())
            ]
            assert values[0] == values[1]


def test_root_lives_in_the_spawner_alone() -> None:
    """A stolen link, a bug in HTTP or in an image's tar: the agent can do nothing on the node by itself."""
    agent, work = read("kp-agent.service"), read("kp-work.service")
    assert agent["User"] == "kernpool"
    assert agent["CapabilityBoundingSet"] == agent["AmbientCapabilities"] == ""
    assert agent["NoNewPrivileges"] == "yes"
    assert "User" not in work
    assert "--agent-user kernpool" in work["ExecStart"]


def test_jobs_of_a_system_install_never_run_as_the_agent() -> None:
    """They run as job_user, and as root only by the owner's own file."""
    for unit in ("kp-agent.service", "kp-work.service"):
        assert "--jobs-as job_user" in read(unit)["ExecStart"]
    users = (UNITS / "kernpool.sysusers").read_text()
    assert all(line.split()[1] in ("kernpool", "kpjob") for line in users.splitlines() if line.startswith("u "))


def test_a_coordinator_that_cannot_start_is_not_started_again_and_again() -> None:
    """A wrong setting, a taken port, a second one on the directory: a person has to change something."""
    unit = read("kp-coordinator.service")
    assert unit["RestartPreventExitStatus"].split() == ["2", "3", "4"]
    assert unit["Type"] == "notify"
    assert int(unit["WatchdogSec"]) > 0
    assert unit["User"] == "kernpool"
    assert unit["NoNewPrivileges"] == "yes"
    assert unit["ProtectSystem"] == "strict"
