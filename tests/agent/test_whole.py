"""The agent as a process, with kp-init and a coordinator over mTLS: from the first start to crashes under load."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from kernpool_mesh import messages as m
from kernpool_mesh.reasons import EndReason

pytestmark = pytest.mark.timeout(120)
JOBS, SANDBOXES = 10, 20


def command_lines() -> list[str]:
    """List the command lines of all processes that live; a zombie has none."""
    return [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]


class AgentProcess:
    """kp-agent on one state directory, started and killed as often as a test wants."""

    def __init__(self, directory: Path, coordinator: Any) -> None:
        self.state_dir = directory / "a"
        self.token_file = directory / "token"
        self.coordinator = coordinator
        self.process: asyncio.subprocess.Process | None = None
        self.log = directory / "agent.log"

    def command(self, name: str, **flags: Any) -> list[str]:
        known = {
            "state-dir": self.state_dir,
            "coordinator": self.coordinator.url,
            "join-token-file": self.token_file,
            "node-file": self.state_dir.parent / "node.toml",
            "ended-repeat-s": 0.2,
            "reconnect-s-max": 0.5,
        } | {key.replace("_", "-"): value for key, value in flags.items()}
        return [sys.executable, "-m", "kernpool_agent", name, *[f"--{key}={value}" for key, value in known.items()]]

    async def start(self, **flags: Any) -> None:
        """Start it; with a fresh join token if it has none."""
        if not self.token_file.exists():
            self.token_file.write_text(self.coordinator.join_token())
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(*self.command("run", **flags), stderr=log)

    async def linked(self, **flags: Any) -> m.Hello:
        """Start it and wait for its greeting."""
        before = len(self.coordinator.hellos)
        await self.start(**flags)
        await self.coordinator.until(lambda: len(self.coordinator.hellos) > before and self.coordinator.link, "a link")
        hello: m.Hello = self.coordinator.hellos[-1]
        return hello

    async def kill(self, number: int = signal.SIGKILL) -> int:
        """Send a signal and wait until it is gone."""
        assert self.process is not None
        self.process.send_signal(number)
        status = await self.process.wait()
        await self.coordinator.until(lambda: self.coordinator.link is None, "the link's end")
        return status

    async def gone(self) -> None:
        """Wait until the process is no more; one that does not go by itself is killed, and the test fails."""
        if self.process is None or self.process.returncode is not None:
            return
        try:
            async with asyncio.timeout(10):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
            pytest.fail(f"the agent did not stop:\n{self.log.read_text()[-2000:]}")

    async def run(self, name: str, *more: str) -> tuple[int, str]:
        """Run a subcommand to its end."""
        child = await asyncio.create_subprocess_exec(
            *self.command(name), *more, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        out, err = await child.communicate()
        assert child.returncode is not None
        return child.returncode, (out + err).decode()

    def work_processes(self) -> list[str]:
        """Command lines of kp-init processes of this state directory that live."""
        return [line for line in command_lines() if f"--state {self.state_dir}" in line]


@pytest.fixture
async def agent(tmp_path_factory: pytest.TempPathFactory, coordinator: Any) -> AsyncIterator[AgentProcess]:
    # Sockets lie below the state directory, and their paths are short: pytest's own directories are too deep.
    directory = tmp_path_factory.mktemp("w")
    agent = AgentProcess(directory, coordinator)
    yield agent
    status, told = await agent.run("stop", "--all-work")
    await agent.gone()
    assert status == 0, told
    assert agent.work_processes() == []


def attempt(coordinator: Any, run: str, index: int = 0, fence: int = 1, **changes: Any) -> m.StartAttempt:
    known: dict[str, Any] = {"job_id": "j-1", "name": "t", "setup": "", "env": {}, "limits": m.Limits()} | changes
    return m.StartAttempt(coordinator.next_id(), index=index, fence=fence, run=run, **known)


def sandboxes(coordinator: Any, count: int, command: m.Command | None = None) -> m.CreateSandboxes:
    request_id = coordinator.next_id()
    ids = [f"sb-{request_id:04d}{number:012d}" for number in range(count)]
    return m.CreateSandboxes(request_id, ids, m.Template(), 600, command=command)


async def made(coordinator: Any, request: m.CreateSandboxes) -> dict[str, m.SandboxItem]:
    """Send a bulk create and wait for all its answers."""
    (await coordinator.linked()).send_nowait(request)

    def items() -> list[m.SandboxItems]:
        return [answer for answer in coordinator.all(m.SandboxItems) if answer.request_id == request.request_id]

    await coordinator.until(lambda: any(answer.done for answer in items()), "the last item")
    return {item.sandbox_id: item for answer in items() for item in answer.items}


def state_of(coordinator: Any, index: int, fence: int = 1) -> Any:
    status = coordinator.attempts.get(("j-1", index, fence))
    return status and (status.state, status.reason)


def shell(*command: str, check: bool = True) -> int:
    return subprocess.run(command, check=check, capture_output=True).returncode


def fill(path: Path) -> None:
    """Take every byte of the disk that is left (what others gave back meanwhile, too)."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with contextlib.suppress(OSError):
        while os.write(fd, b"x" * 65536):
            pass
    os.close(fd)


def needs_sandboxes(coordinator: Any) -> None:
    inventory = coordinator.all(m.Inventory)[-1]
    if not inventory.isolation:
        pytest.skip(f"this machine isolates no sandboxes: {inventory.isolation_problems}")


async def test_a_new_node_enrols_tells_what_it_has_and_runs_a_job_and_a_sandbox(
    agent: AgentProcess, coordinator: Any
) -> None:
    """The first minute of a node."""
    hello = await agent.linked()
    assert hello.incarnation == 1
    inventory = coordinator.all(m.Inventory)[0]
    assert inventory.total.cpu_millis > 0
    assert inventory.facts["kernel"] == os.uname().release
    reply = await coordinator.ask(attempt(coordinator, "echo to the log; exit 3"))
    assert reply.code == ""
    await coordinator.until(lambda: state_of(coordinator, 0) == ("ended", EndReason.EXITED), "the end")
    assert coordinator.attempts["j-1", 0, 1].exit_code == 3
    assert coordinator.attempts["j-1", 0, 1].log_bytes == len("to the log\n")
    needs_sandboxes(coordinator)
    (item,) = (await made(coordinator, sandboxes(coordinator, 1, m.Command(["/bin/echo", "hi"])))).values()
    assert item.result is not None
    assert item.result.stdout == b"hi\n"


async def test_metrics_are_served_on_loopback_and_keys_stay_out_of_the_process(
    agent: AgentProcess, coordinator: Any
) -> None:
    """Prometheus on the node scrapes the agent; and no private key was ever in its memory."""
    await agent.linked()
    await coordinator.until(lambda: coordinator.all(m.Heartbeat)[2:], "heartbeats")
    (url,) = coordinator.all(m.Inventory)[0].data_plane_urls
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics", ssl=False) as answer:
        text = await answer.text()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert values["kp_agent_linked"] == "1.0"
    assert values["kp_agent_links_total"] == "1.0"
    assert float(values["kp_agent_certificate_life_left_ratio"]) > 0.9
    assert 'kp_agent_sandboxes{state="parked"}' in values
    assert "kp_agent_process_resident_memory_bytes" in values
    assert agent.process is not None
    mapped = Path(f"/proc/{agent.process.pid}/maps").read_text()
    assert "cryptography" not in mapped
    assert "pydantic" not in mapped


async def test_a_killed_agent_comes_back_to_all_its_work_and_starts_nothing_twice(
    agent: AgentProcess, coordinator: Any, tmp_path: Path
) -> None:
    """SIGKILL with jobs and sandboxes running; one job ends while nobody listens."""
    await agent.linked()
    (tmp_path / "starts").mkdir(mode=0o777)
    stop_file = tmp_path / "stop"
    for index in range(JOBS):
        run = f"echo started >> {tmp_path}/starts/{index}; while [ ! -e {stop_file} ]; do sleep 0.05; done"
        if index:
            run = f"echo started >> {tmp_path}/starts/{index}; sleep 1000"
        assert (await coordinator.ask(attempt(coordinator, run, index))).code == ""
    await coordinator.until(
        lambda: all(state_of(coordinator, i) == ("running", None) for i in range(JOBS)), "running jobs"
    )
    has_sandboxes = bool(coordinator.all(m.Inventory)[-1].isolation)
    request = sandboxes(coordinator, SANDBOXES)
    if has_sandboxes:
        assert all(not item.error for item in (await made(coordinator, request)).values())
    await agent.kill()
    coordinator.attempts.clear()
    coordinator.sandboxes.clear()
    stop_file.touch()
    hello = await agent.linked()
    assert hello.incarnation == 2
    await coordinator.until(lambda: state_of(coordinator, 0) == ("ended", EndReason.EXITED), "the end told")
    assert [state_of(coordinator, i) for i in range(1, JOBS)] == [("running", None)] * (JOBS - 1)
    if has_sandboxes:
        living = {i for i, status in coordinator.sandboxes.items() if status.state is m.SandboxState.RUNNING}
        assert set(request.sandbox_ids) <= living
    for index in range(JOBS):  # the coordinator did not get all answers, and asks again
        assert (await coordinator.ask(attempt(coordinator, "exit 9", index))).code == ""
    assert [len((tmp_path / "starts" / str(i)).read_text().splitlines()) for i in range(JOBS)] == [1] * JOBS
    for index in range(1, JOBS):
        stop = m.StopAttempt(coordinator.next_id(), "j-1", index, 1, EndReason.CANCELLED, grace_s=1)
        assert (await coordinator.ask(stop)).code == ""
    await coordinator.until(
        lambda: all(state_of(coordinator, i) == ("ended", EndReason.CANCELLED) for i in range(1, JOBS)), "the stops"
    )


async def test_a_stopped_agent_detaches_and_work_goes_on(
    agent: AgentProcess, coordinator: Any, tmp_path: Path, eventually: Any
) -> None:
    """An upgrade: SIGTERM, new version, start. The job's log has no gap."""
    await agent.linked()
    marks = tmp_path / "marks"
    run = f"for i in 1 2 3; do echo $i; while [ ! -e {marks}.$i ]; do sleep 0.02; done; done; echo over"
    await coordinator.ask(attempt(coordinator, run))
    await coordinator.until(lambda: state_of(coordinator, 0) == ("running", None), "the job")
    assert await agent.kill(signal.SIGTERM) == 0
    for number in (1, 2, 3):
        Path(f"{marks}.{number}").touch()
    await eventually(lambda: list((agent.state_dir / "work" / "j").glob("*/log.*")), "the log")
    await agent.linked()
    await coordinator.until(lambda: state_of(coordinator, 0) == ("ended", EndReason.EXITED), "the end")
    assert coordinator.attempts["j-1", 0, 1].log_bytes == len("1\n2\n3\nover\n")


async def test_a_coordinator_that_is_away_stops_nothing_and_hears_all_later(
    agent: AgentProcess, coordinator: Any, tmp_path: Path
) -> None:
    """An outage of the control plane."""
    await agent.linked()
    gate = tmp_path / "gate"
    await coordinator.ask(attempt(coordinator, f"while [ ! -e {gate} ]; do sleep 0.02; done; exit 5"))
    await coordinator.until(lambda: state_of(coordinator, 0) == ("running", None), "the job")
    port = coordinator.port
    await coordinator.die()
    gate.touch()
    await coordinator.serve(port)
    await coordinator.until(lambda: state_of(coordinator, 0) == ("ended", EndReason.EXITED), "the end told")
    assert coordinator.attempts["j-1", 0, 1].exit_code == 5


async def test_a_newer_attempt_of_the_same_rank_ends_the_older_one_first(agent: AgentProcess, coordinator: Any) -> None:
    """The rank was placed anew while this node was thought gone."""
    await agent.linked()
    await coordinator.ask(attempt(coordinator, "exec sleep 1000"))
    await coordinator.until(lambda: state_of(coordinator, 0) == ("running", None), "the first attempt")
    reply = await coordinator.ask(attempt(coordinator, "exit 0", fence=2))
    assert reply.code == ""
    await coordinator.until(lambda: state_of(coordinator, 0, 2) == ("ended", EndReason.EXITED), "the second")
    assert state_of(coordinator, 0, 1) == ("ended", EndReason.CANCELLED)


async def test_a_second_agent_on_the_same_directory_is_refused(agent: AgentProcess, coordinator: Any) -> None:
    """Started by hand while systemd runs one."""
    await agent.linked()
    assert agent.process is not None
    status, told = await agent.run("run")
    assert status == 2
    assert f"is held by the agent with pid {agent.process.pid}; stop that one first" in told
    assert coordinator.link is not None


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"uses_left": 0}, "is used up; make a new one"),
        ({"expires_unix_s": 1.0}, "expired"),
    ],
)
async def test_a_join_token_that_is_not_honoured_ends_the_agent_with_the_reason(
    agent: AgentProcess, coordinator: Any, changes: dict[str, Any], told: str
) -> None:
    """systemd must not restart it in a loop: only a person can help."""
    agent.token_file.write_text(coordinator.join_token(**changes))
    status, output = await agent.run("run")
    assert status == 2
    assert told in output
    assert agent.token_file.read_text() not in output


async def test_the_token_of_another_coordinator_ends_the_agent_with_the_reason(
    agent: AgentProcess, foreign: Any
) -> None:
    """The wrong address in agent.toml."""
    agent.token_file.write_text(foreign.join_token())
    status, output = await agent.run("run")
    assert status == 2
    assert "not the one that the join token pins" in output


async def test_mistakes_on_the_command_line_are_told_before_anything_is_touched(
    agent: AgentProcess, tmp_path: Path
) -> None:
    """A slip in agent.toml, a missing coordinator."""
    config = tmp_path / "agent.toml"
    config.write_text("heartbeet = 3\n")
    status, output = await agent.run("run", f"--config={config}")
    assert (status, output.startswith(f"kp-agent: {config}: unknown setting heartbeet")) == (2, True)
    status, output = await agent.run("run", "--coordinator=")
    assert status == 2
    assert not agent.state_dir.exists()


async def test_an_agent_started_before_its_coordinator_waits_for_it(agent: AgentProcess, coordinator: Any) -> None:
    """Both machines boot after a power cut; the coordinator is slower."""
    port = coordinator.port
    agent.token_file.write_text(coordinator.join_token(uses_left=1))
    await coordinator.die()
    await agent.start()
    await coordinator.serve(port)
    await coordinator.linked()


async def test_certificates_are_renewed_over_the_link(agent: AgentProcess, coordinator: Any) -> None:
    """Half of its life is over: no link is broken for it."""
    coordinator.certificate_life_s = 6.0
    await agent.linked()
    await coordinator.until(lambda: coordinator.renewed, "a renewal")
    coordinator.certificate_life_s = 86400.0
    assert len(coordinator.hellos) == 1


async def test_a_full_disk_under_the_journal_refuses_jobs_and_the_agent_lives(
    agent: AgentProcess, coordinator: Any, tmp_path: Path
) -> None:
    """Somebody's dataset filled the disk."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small filesystem needs root")
    agent.state_dir.mkdir()
    shell("mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(agent.state_dir))
    try:
        await agent.linked(reserved_disk_mib=0)
        assert (await coordinator.ask(attempt(coordinator, "sleep 1000"))).code == ""
        await coordinator.until(lambda: state_of(coordinator, 0) == ("running", None), "the first job")
        codes = [""]
        while codes[-1] != "disk_full" and len(codes) < 100:  # the first records may still fit the journal's last page
            fill(agent.state_dir / "filler")
            message = attempt(coordinator, "true", len(codes), job_id="j-7")
            codes.append((await coordinator.ask(message)).code)
        assert codes[-1] == "disk_full"
        await agent.kill()  # and comes back, although it can write nothing
        coordinator.attempts.clear()
        fill(agent.state_dir / "filler")
        await agent.linked(reserved_disk_mib=0)
        fill(agent.state_dir / "filler")
        assert state_of(coordinator, 0) == ("running", None)
        assert (await coordinator.ask(attempt(coordinator, "true", 0, job_id="j-8"))).code == "disk_full"
        (agent.state_dir / "filler").unlink()
        assert (await coordinator.ask(attempt(coordinator, "true", 9))).code == ""
        await coordinator.until(lambda: state_of(coordinator, 9) == ("ended", EndReason.EXITED), "a job after it")
    finally:
        (agent.state_dir / "filler").unlink(missing_ok=True)
        await agent.run("stop", "--all-work")  # before the directory with its socket goes
        await agent.gone()
        shell("umount", "-l", str(agent.state_dir))


async def test_stopping_with_all_work_leaves_nothing(agent: AgentProcess, coordinator: Any) -> None:
    """`kernpool api stop`: the agent is alive, or it was killed before."""
    await agent.linked()
    await coordinator.ask(attempt(coordinator, "sleep 1234.5 & sleep 1234.5"))
    await coordinator.until(lambda: state_of(coordinator, 0) == ("running", None), "the job")
    assert agent.work_processes()
    await agent.kill()
    status, told = await agent.run("stop", "--all-work")
    assert status == 0, told
    assert agent.work_processes() == []
    assert "sleep 1234.5" not in command_lines()
