"""Starting the embedded coordinator and agent: once, whoever asks first, and only as far as something is missing."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from kernpool.embedded import lock
from kernpool.embedded.layout import API_PORT, NODE_PORT, Home, Settings
from kernpool.embedded.processes import Process, child_environment, daemon, poll_until, port_owner
from kernpool.endpoint import find_endpoint
from kernpool.errors import KernpoolError, StartError, UnreachableError
from kernpool.protocol import calls
from kernpool.protocol.origin import coordinator_origin
from kernpool.sdk.transport import Transport

COORDINATOR_START_S: Final = 60.0
AGENT_START_S: Final = 60.0
LOG_BYTES_MAX: Final = 16 << 20
"""A log longer than this begins anew at the next start; one older part is kept."""
LOG_TAIL_LINES: Final = 8
JOIN_TOKEN_S: Final = 600.0

Say = Callable[[str], None]


@final
@dataclass(frozen=True, slots=True)
class Running:
    """What a start found or made."""

    url: str
    was_running: bool
    """Nothing had to be started."""
    nodes_ready: int


def coordinator_process(home: Home) -> Process | None:
    """Find the embedded coordinator."""
    return daemon(home.coordinator, "coordinator.pid")


def agent_process(home: Home) -> Process | None:
    """Find the embedded agent."""
    return daemon(home.agent, "agent.pid")


def is_running(home: Home) -> bool:
    """Say whether both live and the coordinator has said where it listens; costs some file reads."""
    found = home.endpoint_file.exists()
    for process in (coordinator_process(home), agent_process(home)) if found else ():
        if process is None:
            found = False
        else:
            process.close()
    return found


def ensure_running(say: Say = lambda _: None) -> None:
    """Start what is missing; nothing is said when all runs. Raises StartError."""
    home = Home.find()
    if not is_running(home):
        start(home, say=say)


def start(
    home: Home, *, api_port: int | None = None, node_listen: str | None = None, say: Say = lambda _: None
) -> Running:
    """Start what is missing and wait until this machine's node is ready. Raises StartError."""
    home.make()
    with lock.held(home, lambda: say("Another start or stop is under way; waiting for it ...")):
        if is_running(home):
            return Running(find_endpoint(environ={}).url, was_running=True, nodes_ready=_nodes_ready(home))
        say("Starting kernpool on this machine (it stays until `kernpool api stop`) ...")
        try:
            _start_coordinator(home, api_port, node_listen, say)
            ready = _start_agent(home, say)
        except KeyboardInterrupt:
            say("\nInterrupted. What has started so far goes on until: kernpool api stop")
            raise
        endpoint = find_endpoint(environ={})
        return Running(endpoint.url, was_running=False, nodes_ready=ready)


# --- the coordinator ---


def _start_coordinator(home: Home, api_port: int | None, node_listen: str | None, say: Say) -> None:
    alive = coordinator_process(home)
    if alive is not None:
        with alive:
            if home.endpoint_file.exists():
                return
            _await_coordinator(home, alive)
            return
    settings = _choose_ports(Settings.load(home.settings_file), api_port, node_listen, say)
    home.endpoint_file.unlink(missing_ok=True)
    process = _spawn(
        "kernpool_coordinator",
        home.coordinator_log,
        f"--state-dir={home.coordinator}",
        f"--api-listen=127.0.0.1:{settings.api_port}",
        f"--node-listen={settings.node_listen}",
        f"--endpoint-file={home.endpoint_file}",
        f"--token-file={home.token_file}",
    )
    if process is None:
        raise _failed("The coordinator", home.coordinator_log)
    with process:
        _await_coordinator(home, process)
    _save(home, settings)


def _choose_ports(saved: Settings, api_port: int | None, node_listen: str | None, say: Say) -> Settings:
    """Take what was said now, else what was taken before, else the usual ports, else free ones. Raises StartError."""
    settings = saved.told(api_port, node_listen)
    if settings.api_port:
        _check_port("127.0.0.1", settings.api_port, "kernpool api start --port 0")
    elif api_port is None and _is_free("127.0.0.1", API_PORT):
        settings = settings.told(API_PORT, None)
    elif api_port is None:
        say(f"Port {API_PORT} is used by {port_owner(API_PORT)}; taking a free one.")
    if settings.node_listen:
        host, _, port = settings.node_listen.rpartition(":")
        if port.isdigit() and int(port):
            _check_port(host.strip("[]"), int(port), "kernpool api start --node-listen 127.0.0.1:0")
        return settings
    return settings.told(None, f"127.0.0.1:{NODE_PORT if _is_free('127.0.0.1', NODE_PORT) else 0}")


def _check_port(host: str, port: int, other: str) -> None:
    if not _is_free(host, port):
        raise StartError(
            f"Port {port} is used by {port_owner(port)}.", hint=f"Stop that one, or take a free port: {other}"
        )


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _await_coordinator(home: Home, process: Process) -> None:
    """Wait until it has said where it listens and answers there. Raises StartError."""
    transport = Transport()
    try:
        for _ in poll_until(time.monotonic() + COORDINATOR_START_S):
            if process.has_ended:
                raise _failed("The coordinator", home.coordinator_log)
            if home.endpoint_file.exists() and home.token_file.exists() and _answers(transport):
                return
    finally:
        transport.close()
    process.end(5.0)
    raise _failed(f"The coordinator did not answer within {COORDINATOR_START_S:.0f} s; it", home.coordinator_log)


def _answers(transport: Transport) -> bool:
    try:
        transport.run(coordinator_origin(find_endpoint(environ={})), calls.health())
    except KernpoolError:
        return False
    return True


def _save(home: Home, settings: Settings) -> None:
    """Keep the ports for the next start: machines that joined dial the node port."""
    endpoint = find_endpoint(environ={})
    port = coordinator_origin(endpoint).port
    host = settings.node_listen.rpartition(":")[0]
    node_port = coordinator_node_url(endpoint.url, endpoint.token).rpartition(":")[2].rstrip("/")
    try:
        settings.told(port, f"{host}:{node_port}" if node_port.isdigit() else settings.node_listen).save(
            home.settings_file
        )
    except OSError as error:
        raise StartError(f"Cannot write {home.settings_file}: {error.strerror}.") from error


def coordinator_node_url(url: str, token: str) -> str:
    """Ask a coordinator where its agents dial."""
    from kernpool.sdk.client import Client

    with Client(url, token) as client:
        return client.info().node_url


# --- the agent ---


def _start_agent(home: Home, say: Say) -> int:
    """Start the agent unless it lives, and wait until its node is ready; gives the number of nodes ready."""
    alive = agent_process(home)
    if alive is not None:
        # The coordinator may be new: the agent needs a moment to find it again.
        with alive:
            return _await_node(home, alive, say)
    endpoint = find_endpoint(environ={})
    if not _has_identity(home):
        _write_join_token(home)
    process = _spawn(
        "kernpool_agent",
        home.agent_log,
        f"--state-dir={home.agent}",
        f"--coordinator={coordinator_node_url(endpoint.url, endpoint.token)}",
        f"--join-token-file={home.join_token_file}",
    )
    if process is None:
        raise _failed("The agent", home.agent_log)
    with process:
        ready = _await_node(home, process, say)
    home.join_token_file.unlink(missing_ok=True)
    return ready


def _has_identity(home: Home) -> bool:
    # Not the directory: an enrolment that failed leaves its key there, to be used at the next try.
    return (home.agent / "identity" / "identity.pem").is_file()


def _write_join_token(home: Home) -> None:
    from kernpool.sdk.client import Client

    with Client(endpoint=find_endpoint(environ={})) as client:
        made = client.create_join_token(expires_s=JOIN_TOKEN_S)
    file_fd = os.open(home.join_token_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(file_fd, "w") as file:
        file.write(f"{made.token}\n")


def _await_node(home: Home, process: Process, say: Say) -> int:
    """Wait until a node is ready. Raises StartError when the agent ends first."""
    for _ in poll_until(time.monotonic() + AGENT_START_S):
        if process.has_ended:
            raise _failed("The agent", home.agent_log)
        if ready := _nodes_ready(home):
            return ready
    say(f"This machine's node is not ready after {AGENT_START_S:.0f} s; its log is {home.agent_log}")
    return 0


def _nodes_ready(home: Home) -> int:
    from kernpool.sdk.client import Client

    if not home.endpoint_file.exists():
        return 0
    try:
        with Client(endpoint=find_endpoint(environ={})) as client:
            return sum(node.state == "ready" for node in client.nodes())
    except UnreachableError:
        return 0


# --- both ---


LAUNCHER: Final = """
import os, sys
log, argv = sys.argv[1], sys.argv[2:]
os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
files = [(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, 2, 1)]
print(os.posix_spawn(argv[0], argv, os.environ, file_actions=files))
"""
"""Runs the daemon as its child and ends: a daemon must not be the child of whoever happened to start it first (that
program would have to take its exit status), and a shell's background job would ignore SIGINT, as would all its work."""


def _spawn(module: str, log: Path, *arguments: str) -> Process | None:
    """Start a daemon: own session, nothing of the terminal's, its words into its log. None: it has ended already."""
    if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
        log.replace(log.with_name(f"{log.name}.1"))
    # -P: a user's own folder of the same name in the current directory must not be run in place of ours.
    command = [sys.executable, "-P", "-m", module, *arguments]
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", LAUNCHER, str(log), *command],
            stdin=subprocess.DEVNULL, capture_output=True, env=child_environment(), cwd="/", start_new_session=True,
            check=True, timeout=30,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise StartError(f"Cannot run {sys.executable} -m {module}: {error}.") from error
    return Process.hold(int(done.stdout))


def log_tail(log: Path, lines: int = LOG_TAIL_LINES) -> str:
    """Give the last lines of a log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 16_384))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def _failed(what: str, log: Path) -> StartError:
    tail = log_tail(log)
    told = f"\n  | {tail.replace(chr(10), chr(10) + '  | ')}" if tail else ""
    return StartError(f"{what} could not be started.{told}", hint=f"Its whole log: {log}")
