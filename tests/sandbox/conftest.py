"""Fixtures of the sandbox stories: a real runtime on this machine, and a check that a story left nothing behind."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest
import pytest_asyncio

from kernpool_mesh.messages import Command, CommandResult, SandboxStatus, Template
from kernpool_mesh.reasons import EndReason
from kernpool_sandbox.cgroup_detect import detect
from kernpool_sandbox.config import RuntimeConfig
from kernpool_sandbox.kpinit.launch import default_runtime_dir
from kernpool_sandbox.pool import PoolPolicy
from kernpool_sandbox.runtime import SandboxRuntime
from kernpool_sandbox.startup import tag_of

USER_UID = 1001
POLL_S = 0.005
"""Pause between two looks at a condition."""
LEFT_DEADLINE_S = 10.0
PREFIXES: list[str] = []
"""How the names of this process's slots begin: PID 1s show them as their command line."""
NO_POOL = PoolPolicy(auto_max=0, auto_min=0)
"""For stories that count what is there: nothing is parked unless the story asks for it."""


# --- being another user ---


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


def user_options() -> dict[str, Any]:
    """Return what makes subprocess start a program as an ordinary user."""
    env = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PATH": os.environ["PATH"], "HOME": "/"}
    return {"user": USER_UID, "group": USER_UID, "extra_groups": [], "env": env, "cwd": "/"}


class AsUser(Protocol):
    """Runs a script as an ordinary user."""

    def __call__(self, script: str, *arguments: str, timeout_s: float = 60) -> str: ...


@pytest.fixture
def as_user() -> AsUser:
    """Run a script as an ordinary user and return what it prints."""
    if os.geteuid() != 0:
        pytest.skip("becomes another user, which needs root")
    python = user_python()

    def run(script: str, *arguments: str, timeout_s: float = 60) -> str:
        done = subprocess.run(
            [python, "-c", script, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            **user_options(),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return str(done.stdout)

    return run


# --- what a story may leave behind: nothing ---


@dataclass
class Traces:
    """What is on the machine because of one state directory, and in this process."""

    state_dir: Path
    fds: int = 0
    mounts: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, state_dir: Path) -> "Traces":
        return cls(state_dir, open_files(), mounts())

    def left(self) -> list[str]:
        """Return a line for each thing that is there and should not be."""
        found = [f"mount {line}" for line in mounts() if line not in self.mounts]
        found += [f"process {line}" for line in processes_of(self.state_dir)]
        found += [f"cgroup {path}" for path in cgroups_of(self.state_dir)]
        found += [f"file {path}" for name in ("s", "j") for path in (self.state_dir / name).glob("*")]
        runtime_dir = default_runtime_dir(self.state_dir)
        found += [f"directory {runtime_dir}"] if runtime_dir.is_dir() and runtime_dir.parent != self.state_dir else []
        if open_files() > self.fds:
            found.append(f"{open_files() - self.fds} descriptors")
        return found

    async def expect_none(self) -> None:
        """Wait until nothing is left: the host's PID 1 may take its time to reap."""
        deadline = asyncio.get_running_loop().time() + LEFT_DEADLINE_S
        while left := self.left():
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError("the story left behind:\n" + "\n".join(left))
            await asyncio.sleep(POLL_S)


def open_files() -> int:
    """Return how many descriptors this process has."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def mounts() -> list[str]:
    """Return the mount points of this mount namespace."""
    return [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]


def processes_of(state_dir: Path) -> list[str]:
    """Return the spawners of this state directory and the PID 1s that this process asked for (others die with them)."""
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            line = Path(entry.path, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if f"{state_dir} " in line or line.startswith(tuple(f"kp-init {prefix}." for prefix in PREFIXES)):
                found.append(f"{entry.name} {line[:100]}")
    return found


def cgroups_of(state_dir: Path) -> list[Path]:
    """Return the cgroup directories of this state directory's runtime."""
    return [
        path
        for parent in detect().parents.values()
        for path in [parent / f"kernpool-{tag_of(state_dir)}"]
        if path.exists()
    ]


# --- a real runtime ---


@pytest.fixture(scope="session")
def images_dir() -> Iterator[Path]:
    """Prepared images, shared by all stories: the first scan of the host takes seconds."""
    directory = Path(tempfile.mkdtemp(prefix="kpimg-"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def state_dir() -> Iterator[Path]:
    """A state directory with a short path."""
    directory = Path(tempfile.mkdtemp(prefix="kps-"))
    yield directory
    end_leftovers(directory)
    shutil.rmtree(directory, ignore_errors=True)


def end_leftovers(directory: Path) -> None:
    """End what a story that failed in its midst has left, so that the next ones do not meet it."""
    for line in processes_of(directory):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(line.split()[0]), signal.SIGKILL)
    for base in cgroups_of(directory):
        for path in (*base.glob("*/"), base):
            with contextlib.suppress(OSError):
                path.rmdir()
    runtime_dir = default_runtime_dir(directory)
    if runtime_dir.parent != directory:
        shutil.rmtree(runtime_dir, ignore_errors=True)


@pytest.fixture
def config(state_dir: Path, images_dir: Path) -> RuntimeConfig:
    return RuntimeConfig(state_dir, pool=NO_POOL, images_dir=images_dir)


@dataclass
class Node:
    """A runtime with the helpers that stories share."""

    runtime: SandboxRuntime
    updates: list[SandboxStatus]
    count: int = 0

    async def sandbox(self, template: Template | None = None, ttl_s: float = 60, **options: Any) -> str:
        """Make a sandbox and return its id."""
        self.count += 1
        sandbox_id = f"sb-{self.count}"
        await self.runtime.create(sandbox_id, template or Template(), ttl_s=ttl_s, **options)
        return sandbox_id

    async def sh(self, sandbox_id: str, script: str, **options: Any) -> CommandResult:
        """Run a shell script."""
        return await self.runtime.run(sandbox_id, Command(["/bin/sh", "-c", script], **options))

    async def ended(self, sandbox_id: str, within_s: float = 15) -> tuple[EndReason | None, str]:
        """Wait until a sandbox has ended and was reported; return why."""
        await until(lambda: any(one.sandbox_id == sandbox_id for one in self.updates), within_s, f"end of {sandbox_id}")
        status = next(one for one in self.updates if one.sandbox_id == sandbox_id)
        return status.reason, status.detail


def find(argv: str) -> str:
    """Return a script that prints the pids of processes with exactly this command line, and fails when there is none.

    Not pgrep: a minimal Debian has none.
    """
    return (
        "found=1; for p in /proc/[0-9]*; do "
        f"[ \"$(tr '\\0' ' ' <$p/cmdline 2>/dev/null)\" = '{argv} ' ] && echo ${{p#/proc/}} && found=0; "
        "done; [ $found = 0 ]"
    )


async def until(condition: Callable[[], bool], within_s: float, what: str) -> None:
    """Poll a condition with a deadline."""
    deadline = asyncio.get_running_loop().time() + within_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"no {what} within {within_s} s"
        await asyncio.sleep(POLL_S)


async def open_node(config: RuntimeConfig) -> Node:
    """Open a runtime and collect what it reports."""
    updates: list[SandboxStatus] = []
    node = Node(await SandboxRuntime.open(config, on_update=updates.extend), updates)
    PREFIXES.append(node.runtime._maker._names._prefix)
    return node


@pytest.fixture
async def node(config: RuntimeConfig) -> AsyncIterator[Node]:
    """A runtime on this machine; afterwards nothing of it may be left."""
    async with checked_node(config) as node:
        yield node


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(images_dir: Path) -> AsyncIterator[Node]:
    """One runtime for all stories of a module that only use sandboxes; afterwards nothing of it may be left."""
    state_dir = Path(tempfile.mkdtemp(prefix="kps-"))
    try:
        async with checked_node(RuntimeConfig(state_dir, pool=NO_POOL, images_dir=images_dir)) as node:
            yield node
    finally:
        end_leftovers(state_dir)
        shutil.rmtree(state_dir, ignore_errors=True)


@contextlib.asynccontextmanager
async def checked_node(config: RuntimeConfig) -> AsyncIterator[Node]:
    """Open a runtime, end it, and look for what it left."""
    tasks = asyncio.all_tasks()
    traces = Traces.of(config.state_dir)
    node = await open_node(config)
    if not node.runtime.isolation.works:
        await node.runtime.shutdown()
        pytest.skip("no sandboxes here: " + " ".join(node.runtime.isolation.problems))
    yield node
    await node.runtime.shutdown()
    await traces.expect_none()
    assert asyncio.all_tasks() <= tasks | {asyncio.current_task()}
