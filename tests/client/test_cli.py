"""The command line beyond the transcripts of its page: JSON, questions, terminals, interrupts, pipes that close."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from contract_server import ContractServer
from typed import Shell


@pytest.fixture
def shell(server: ContractServer, tmp_path: Path) -> Shell:
    directory = tmp_path / "work"
    directory.mkdir()
    return Shell(directory, KERNPOOL_API_URL=server.url, KERNPOOL_API_TOKEN="kpt_test")


LISTINGS = ["queue", "node ls", "sandbox ls", "sandbox pool ls", "token ls", "join-token ls"]


@pytest.mark.parametrize("words", LISTINGS)
def test_every_listing_is_json_when_asked(shell: Shell, words: str) -> None:
    shell.run("launch", "-d", "--", "true")
    items = json.loads(shell.run(*words.split(), "--json").stdout)["items"]
    assert isinstance(items, list)


@pytest.mark.parametrize("words", ["status", "node show box", "api info"])
def test_what_shows_one_thing_is_one_json_object(shell: Shell, words: str) -> None:
    done = shell.run(*words.split(), "--json")
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    assert isinstance(json.loads(done.stdout), dict)


def test_quiet_listings_are_ids_alone(shell: Shell) -> None:
    shell.run("launch", "-d", "-c", "dev", "--", "true")
    assert shell.run("queue", "-q").stdout == "j-1\n"
    assert shell.run("status", "-q").stdout == "dev\n"
    assert shell.run("node", "ls", "-q").stdout == "n-aaaabbbbcccc\n"
    assert shell.run("sandbox", "ls", "-q").stdout == ""


def test_a_pipe_gets_no_colours_and_no_trailing_spaces(shell: Shell) -> None:
    shell.run("launch", "-d", "--", "true")
    for words in ("status", "queue", "node ls", "events"):
        done = shell.run(*words.split())
        assert "\x1b" not in done.stdout
        assert not re.search(r" $", done.stdout, re.MULTILINE)
        assert done.stderr == ""


def test_launch_with_json_gives_the_job_on_stdout_and_its_log_on_stderr(shell: Shell) -> None:
    done = shell.run("launch", "--json", "-q", "--", "echo log; exit 5")
    assert (done.returncode, done.stderr) == (5, "log\n")
    assert json.loads(done.stdout)["exit_code"] == 5
    detached = shell.run("launch", "-d", "--json", "--", "true")
    assert json.loads(detached.stdout)["id"] == "j-2"


def test_bulk_json_is_one_line_a_sandbox(shell: Shell) -> None:
    done = shell.run("sandbox", "create", "--count", "3", "--rm", "--json", "--", "sh", "-c", "echo out; exit 2")
    items = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1
    assert [(item["result"]["stdout"], item["result"]["exit_code"]) for item in items] == [("out\n", 2)] * 3


def test_variables_and_secrets_come_from_where_they_are_said_to(shell: Shell) -> None:
    (shell.directory / "vars.env").write_text("# comment\nexport A=file\nB='quoted text'\n\n")
    (shell.directory / "t.yaml").write_text(
        "envs: {A: yaml, B: null, C: null}\nsecrets: {S: null}\nrun: echo $A $B $C $S\n"
    )
    words = ["launch", "-q", "--env-file", "vars.env", "-e", "C=flag", "--secret", "S", "t.yaml"]
    assert shell.run(*words, env={"S": "hush"}).stdout == "file quoted text flag hush\n"
    missing = shell.run("launch", "t.yaml")
    assert missing.returncode == 2
    assert "t.yaml: B, C, S: the file leaves them to you: say --env B=VALUE --env C=VALUE --secret S" in missing.stderr
    absent = shell.run("launch", "--secret", "NOT_THERE", "t.yaml")
    assert "there is no such variable here" in absent.stderr
    seen = shell.run("launch", "-q", "--secret", "S=x", "-e", "B=1", "-e", "C=2", "t.yaml")
    assert "Everybody here could see the value of S" in seen.stderr
    assert "hush" not in shell.run("queue", "--json").stdout


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("run: [a]\n", "t.yaml:1:1: run: expected a text"),
        ("run: a\nresources:\n  cpu: 3\n", "t.yaml:3:3: resources.cpu: unknown key: did you mean `cpus`?"),
        ("run: a\nrun: b\n", "t.yaml:2:1"),
        ("", "t.yaml"),
        ("run: a\nresources: {use_spot: true}\n", "not built yet"),
    ],
)
def test_a_wrong_task_file_is_told_with_its_place_and_nothing_runs(shell: Shell, text: str, told: str) -> None:
    (shell.directory / "t.yaml").write_text(text)
    done = shell.run("launch", "t.yaml")
    assert done.returncode == 2
    assert told in done.stderr
    assert shell.run("queue", "-q").stdout == ""


def test_a_task_file_may_come_through_stdin_and_options_win_over_it(shell: Shell) -> None:
    task = "name: from-file\nresources: {cpus: 1, gpus: 'H100:8'}\nrun: echo $KP_JOB_ID\n"
    assert shell.run("launch", "-q", "-n", "mine", "--cpus", "2", "-", stdin=task).stdout == "j-1\n"
    assert json.loads(shell.run("queue", "--json").stdout)["items"][0]["name"] == "mine"


BAD_USAGE = [
    "launch", "launch --", "launch a.yaml -- ls", "launch --cpus many -- ls", "launch --memory 2x -- ls",
    "launch --num-nodes 0 -- ls", "exec", "exec dev", "cancel", "cancel j-1 -a", "down", "logs a b", "queue -n 0",
    "queue --json -q", "sandbox create --count 0", "sandbox create --count x", "sandbox create --rm",
    "sandbox create --", "sandbox create --timeout 3s", "sandbox create -i --count 2 -- cat", "sandbox create -e =x",
    "sandbox create --label x", "sandbox create --memory 0", "sandbox create --cpus -1", "sandbox exec",
    "sandbox exec sb-a", "sandbox exec sb-a ls", "sandbox cp a b", "sandbox cp sb-a:/x sb-b:/y", "sandbox rm",
    "sandbox rm sb-a -a", "sandbox extend sb-a", "sandbox extend --ttl 0s sb-a", "sandbox pool set", "node show",
    "node rm", "token create", "token create --role king me", "token rm", "join-token create --expires never",
    "join-token create --uses 0", "events --after x", "completion csh", "api start --port 70000",
    "api start --node-listen here", "sandbox", "node", "nodes", "--verbose", "status extra", "launch -e 1 -- ls",
]  # fmt: skip


@pytest.mark.parametrize("line", BAD_USAGE)
def test_bad_usage_ends_with_2_and_says_what_to_type(
    server: ContractServer, line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernpool.cli import main

    monkeypatch.setenv("KERNPOOL_API_URL", server.url)
    monkeypatch.setenv("KERNPOOL_API_TOKEN", "kpt_test")
    assert main(line.split()) == 2
    told = capsys.readouterr()
    assert "kernpool" in told.err + told.out
    assert "Traceback" not in told.err
    assert server.state.jobs == {}
    assert server.state.sandboxes == {}


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    from kernpool.cli import main
    from kernpool.cli.commands import COMMANDS

    for command in COMMANDS:
        with pytest.raises(SystemExit) as ended:
            main([*command.words.split(), "--help"])
        assert ended.value.code == 0
        assert f"usage: kernpool {command.words}" in capsys.readouterr().out


@pytest.mark.parametrize("shell_name", ["bash", "zsh", "fish"])
def test_completion_scripts_are_made(shell: Shell, shell_name: str) -> None:
    text = shell.run("completion", shell_name).stdout
    assert "kernpool sandbox ls -q" in text
    if shell_name != "fish":
        assert subprocess.run(["bash", "-n"], input=text.encode(), check=False).returncode == 0


def test_bash_completes_words_options_and_ids(shell: Shell) -> None:
    shell.run("launch", "-d", "--", "sleep 60")
    script = shell.run("completion", "bash").stdout
    (shell.directory / "bin").mkdir()
    (shell.directory / "bin" / "kernpool").write_text(f'#!/bin/sh\nexec {sys.executable} -m kernpool "$@"\n')
    (shell.directory / "bin" / "kernpool").chmod(0o755)

    def complete(*words: str) -> str:
        ask = f"COMP_WORDS=(kernpool {' '.join(words)} ''); COMP_CWORD={len(words) + 1}; _kernpool"
        ask += "; echo ${COMPREPLY[@]}"
        done = subprocess.run(["bash", "-c", f"{script}\n{ask}"], env=shell.env, capture_output=True, check=True)
        return done.stdout.decode()

    assert "launch" in complete()
    assert complete("sandbox").split() == ["cp", "create", "exec", "extend", "ls", "pool", "rm", "show"]
    assert "--ttl" in complete("sandbox", "create")
    assert "j-1" in complete("cancel")


def test_without_a_terminal_a_question_is_refused_and_yes_answers_it(shell: Shell, server: ContractServer) -> None:
    shell.run("launch", "-d", "-c", "dev", "--", "sleep 60")
    for words in (["down", "dev"], ["cancel", "-a"], ["cancel", "dev"], ["node", "rm", "box"], ["token", "rm", "x"]):
        done = shell.run(*words)
        assert (done.returncode, "--yes" in done.stderr) == (1, True)
    assert server.state.jobs["j-1"].body["state"] in ("pending", "running")
    assert shell.run("down", "-y", "dev").stdout == "dev: down\n"


def test_on_a_terminal_a_question_can_be_denied_and_agreed_to(shell: Shell, server: ContractServer) -> None:
    shell.run("launch", "-d", "--", "sleep 60")
    denied = shell.tty("cancel", "-a")
    denied.until("Cancel j-1 sleep? [y/N]")
    denied.type("\n")
    assert denied.end() == 1
    assert "Nothing was done." in denied.output
    agreed = shell.tty("cancel", "-a")
    agreed.until("[y/N]")
    agreed.type("y\n")
    assert agreed.end() == 0
    assert server.state.jobs["j-1"].body["state"] == "cancelled"


def test_a_terminal_gets_colours_and_names_cannot_move_its_cursor(shell: Shell, server: ContractServer) -> None:
    """A job's name comes from anybody in the workspace."""
    shell.run("launch", "-d", "--", "true")
    server.state.jobs["j-1"].body["name"] = "evil\x1b[2J\x07\u202ename"
    piped = shell.run("queue").stdout
    assert "\x1b" not in piped
    assert "evil\N{REPLACEMENT CHARACTER}[2J" in piped
    tty = shell.tty("queue")
    assert tty.end() == 0
    assert "\x1b[2J" not in tty.output
    assert "\x1b[" in tty.output, "colours"


def test_a_silent_job_tells_on_a_terminal_and_in_a_pipe_what_it_waits_for(shell: Shell) -> None:
    tty = shell.tty("launch", "--cpus", "500", "--", "true")
    tty.until("pending: no node has that many CPUs free")
    tty.type("\x03")
    tty.until("goes on")
    tty.type("\x03")
    assert tty.end() == 103
    assert "cancelled" in tty.output
    piped = shell.popen("launch", "--cpus", "500", "--", "true")
    assert piped.stderr is not None
    assert piped.stderr.readline() == "j-2 true: submitted\n"
    assert piped.stderr.readline() == "j-2 true: pending: no node has that many CPUs free\n"
    piped.send_signal(signal.SIGINT)
    assert "j-2 goes on. Its log: kernpool logs j-2" in piped.communicate(timeout=20)[1]
    assert piped.returncode == 130


def test_ctrl_c_once_leaves_the_job_running(shell: Shell, server: ContractServer) -> None:
    tty = shell.tty("launch", "--", "echo begun; sleep 60")
    tty.until("begun")
    tty.type("\x03")
    tty.until("Ctrl-C again within 3 s")
    assert tty.end() == 130
    assert server.state.jobs["j-1"].body["state"] == "running"


def test_ctrl_c_in_logs_never_cancels(shell: Shell, server: ContractServer) -> None:
    shell.run("launch", "-d", "--", "echo begun; sleep 60")
    process = shell.popen("logs", "j-1")
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20)[1] == ""
    assert process.returncode == 130
    assert server.state.jobs["j-1"].body["state"] == "running"


def test_ctrl_c_is_passed_to_a_command_in_a_sandbox(shell: Shell) -> None:
    script = "trap 'echo caught; exit 9' INT; echo begun; while :; do sleep 0.05; done"
    process = shell.popen("sandbox", "create", "--rm", "--", "sh", "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20)[0] == "caught\n"
    assert process.returncode == 9
    assert shell.run("sandbox", "ls", "-q").stdout == ""


def test_ctrl_c_amid_a_bulk_create_removes_what_was_made(shell: Shell, server: ContractServer) -> None:
    process = shell.popen("sandbox", "create", "--count", "50", "--", "sh", "-c", "echo x; sleep 0.2")
    assert process.stdout is not None
    assert process.stdout.readline().endswith(": x\n")
    process.send_signal(signal.SIGINT)
    assert "removing what was made" in process.communicate(timeout=30)[1]
    assert process.returncode == 130


def test_a_reader_that_goes_away_ends_us_without_a_word(shell: Shell) -> None:
    """`kernpool logs j-1 | head -1`"""
    shell.run("launch", "-d", "--", "seq 1000000")
    process = shell.popen("logs", "j-1")
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(20) == 141


def test_output_that_is_no_text_passes_unchanged(shell: Shell) -> None:
    data = bytes(range(256))
    (shell.directory / "raw").write_bytes(data)
    sandbox = shell.run("sandbox", "create").stdout.strip()
    shell.run("sandbox", "cp", "raw", f"{sandbox}:/raw")
    done = subprocess.run(
        [sys.executable, "-m", "kernpool", "sandbox", "exec", sandbox, "--", "cat", "raw"],
        env=shell.env, capture_output=True, check=True,
    )  # fmt: skip
    assert done.stdout == data


def test_directories_are_copied_both_ways(shell: Shell) -> None:
    tree = shell.directory / "tree"
    (tree / "inner").mkdir(parents=True)
    (tree / "a.txt").write_text("a")
    (tree / "inner" / "b c.sh").write_text("b")
    (tree / "inner" / "b c.sh").chmod(0o755)
    sandbox = shell.run("sandbox", "create").stdout.strip()
    assert shell.run("sandbox", "cp", "tree", f"{sandbox}:/").returncode == 0
    assert shell.run("sandbox", "cp", f"{sandbox}:/tree", "back").returncode == 0
    back = shell.directory / "back"
    assert sorted(str(path.relative_to(back)) for path in back.rglob("*")) == ["a.txt", "inner", "inner/b c.sh"]
    assert (back / "inner" / "b c.sh").stat().st_mode & 0o777 == 0o755
    short = shell.run("sandbox", "exec", sandbox[:9], "--", "cat", "tree/a.txt")
    assert short.stdout == "a"


def test_a_hostile_sandbox_cannot_write_outside_the_target(shell: Shell, server: ContractServer) -> None:
    """Its file server names a file `../../.bashrc`, or one with a slash."""
    from kernpool.cli.sandbox_cp import _get
    from kernpool.cli.terminal import Terminal
    from kernpool.errors import KernpoolError
    from kernpool.results import FileInfo

    class Files:
        def list(self, _: str) -> tuple[FileInfo, ...]:
            return (FileInfo("../evil", "file", 1, 0o644, 0, 0, 0, ""),)

    class Sandbox:
        id = "sb-evil"
        files = Files()

    top = FileInfo("d", "dir", 0, 0o755, 0, 0, 0, "")
    with pytest.raises(KernpoolError, match="not copied"):
        _get(Sandbox(), "/d", top, shell.directory / "target", Terminal(), 0)  # type: ignore[arg-type]
    assert not (shell.directory / "evil").exists()


def test_reading_commands_start_nothing(tmp_path: Path) -> None:
    shell = Shell(tmp_path, KERNPOOL_HOME=str(tmp_path / "home"))
    for words in ("status", "queue", "node ls", "sandbox ls", "logs", "cancel j-1", "events", "api info"):
        done = shell.run(*words.split())
        assert (done.returncode in (1, 125), done.stdout) == (True, "")
        assert done.stderr == "Kernpool is not running on this machine.\nStart it with: kernpool api start\n"
    forbidden = shell.run("launch", "--", "true", env={"KERNPOOL_NO_START": "1"})
    assert (forbidden.returncode, "not running" in forbidden.stderr) == (125, True)
    status = shell.run("api", "status")
    assert (status.returncode, "coordinator  does not run" in status.stdout) == (1, True)
    assert shell.run("api", "stop").stdout == "Kernpool was not running on this machine.\n"
    assert not (tmp_path / "home").exists()


def test_a_remote_coordinator_needs_a_token(tmp_path: Path) -> None:
    shell = Shell(tmp_path, KERNPOOL_API_URL="https://kernpool.example:1")
    assert "KERNPOOL_API_TOKEN" in shell.run("status").stderr
    wrong = Shell(tmp_path, KERNPOOL_API_URL="kernpool.example", KERNPOOL_API_TOKEN="x")
    assert "expected a URL" in wrong.run("status").stderr


assert os.name == "posix"
