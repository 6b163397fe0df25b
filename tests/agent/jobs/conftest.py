"""A real spawner, real supervisors and real cgroups for jobs."""

import asyncio
import errno
import os
import pwd
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kernpool_agent.ceiling import User
from kernpool_agent.jobs.runtime import JobConfig, JobRuntime
from kernpool_agent.records import AttemptKey
from kernpool_mesh.messages import AttemptState, AttemptStatus, Limits, StartAttempt
from kernpool_sandbox.cgroup_detect import detect, open_tree
from kernpool_sandbox.cgroups import CgroupTree
from kernpool_sandbox.kpinit.binary import find
from kernpool_sandbox.kpinit.launch import SpawnerConfig
from kernpool_sandbox.spawning import Spawning

DEADLINE_S = 20.0
POLL_S = 0.01


def own_user(home: Path) -> User:
    entry = pwd.getpwuid(os.geteuid())
    return User(entry.pw_name, entry.pw_uid, entry.pw_gid, tuple(os.getgroups()), str(home))


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what gives no event."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)


def read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


def refused(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        return connection.connect_ex(path) == errno.ECONNREFUSED


@dataclass
class Jobs:
    """A JobRuntime and what it has told."""

    runtime: JobRuntime
    spawning: Spawning
    cgroups: CgroupTree
    state_dir: Path
    home: Path
    told: list[AttemptStatus] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    count: int = 0

    @staticmethod
    def spec(job_id: str, run: str, **options: Any) -> StartAttempt:
        defaults: dict[str, Any] = {"setup": "", "env": {}, "limits": Limits(), "index": 0, "fence": 1, "grace_s": 5.0}
        return StartAttempt(request_id=0, job_id=job_id, name="test", run=run, **(defaults | options))

    def on_update(self, status: AttemptStatus) -> None:
        self.told.append(status)
        self.changed.set()

    async def start(self, run: str, **options: Any) -> str:
        self.count += 1
        job_id = str(options.pop("job_id", f"j-{self.count}"))
        await self.runtime.start(self.spec(job_id, run, **options))
        return job_id

    async def until(self, done: Callable[[AttemptStatus], bool], job_id: str) -> AttemptStatus:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                for status in self.runtime.statuses():
                    if status.job_id == job_id and done(status):
                        return status
                self.changed.clear()
                await self.changed.wait()

    async def ended(self, job_id: str) -> AttemptStatus:
        return await self.until(lambda status: status.state is AttemptState.ENDED, job_id)

    async def run(self, run: str, **options: Any) -> AttemptStatus:
        return await self.ended(await self.start(run, **options))

    async def printed(self, job_id: str, text: bytes) -> None:
        """Wait until its log holds this text."""
        with self.runtime.log(job_id, 0) as log:
            async with asyncio.timeout(DEADLINE_S):
                while text not in (got := log.read(0)[0]):
                    await log.wait_beyond(len(got))

    def log(self, job_id: str, index: int = 0) -> bytes:
        with self.runtime.log(job_id, index) as log:
            parts: list[bytes] = []
            offset = 0
            while True:
                data, offset = log.read(offset)
                if not data:
                    return b"".join(parts)
                parts.append(data)

    async def nothing_left(self, *besides: str) -> None:
        """Wait until no directory (but these) and no cgroup of a job is there."""
        await eventually(lambda: self.directories() == list(besides))
        await self.no_cgroup_left()

    async def no_cgroup_left(self) -> None:
        await eventually(lambda: not self.cgroups.existing())

    async def socket_gone(self, name: str) -> None:
        """Wait until a supervisor has ended, when nobody is attached to it."""
        await eventually(lambda: not (self.state_dir / "j" / f"{name}.sock").exists())

    async def kill_spawner(self) -> None:
        """SIGKILL; returns when nobody listens on its socket any more."""
        path = str(self.state_dir / "spawner.sock")
        argument = b"\0" + os.fsencode(self.state_dir) + b"\0"
        lines = {int(file.parent.name): read(file) for file in Path("/proc").glob("[0-9]*/cmdline")}
        # Supervisors are its forks and look the same; it is the oldest.
        os.kill(min(pid for pid, line in lines.items() if argument in line and b"spawner\0" in line), signal.SIGKILL)
        await eventually(lambda: refused(path))

    def directories(self) -> list[str]:
        return sorted(entry.name for entry in (self.state_dir / "j").iterdir())


OpenJobs = Callable[..., AbstractAsyncContextManager[Jobs]]


@dataclass
class Ground:
    """Where jobs run in a test: a spawner's state directory and cgroups."""

    config: SpawnerConfig
    cgroups: CgroupTree

    def spawning(self) -> Spawning:
        return Spawning(self.config, find())


@pytest_asyncio.fixture
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    """A spawner's state directory, with the cgroups it may use; all of it is gone afterwards."""
    state_dir = tmp_path_factory.mktemp("w")
    (state_dir / "j").mkdir(mode=0o700)
    cgroups = open_tree(detect(), f"test-{os.getpid()}-{state_dir.name}")
    ids = ((0, 0), (65534, 65534)) if os.geteuid() == 0 else ()
    made = Ground(SpawnerConfig(state_dir, allow_cgroups=cgroups.bases, allow_uids=ids), cgroups)
    yield made
    spawning = made.spawning()
    client = await spawning.connect()
    for child in await client.list():
        await client.kill(child.id)
    await client.stop()
    spawning.close()
    for name in cgroups.existing():
        await eventually(lambda name=name: cgroups.kill(name) and cgroups.remove(name))  # type: ignore[misc]
    cgroups.remove_base()


@pytest.fixture
def open_jobs(ground: Ground, tmp_path: Path) -> OpenJobs:
    """Open a JobRuntime as a starting agent does; closing it leaves the jobs alone."""

    @asynccontextmanager
    async def open_(*, accepted: Iterable[AttemptKey] = (), user: User | None = None) -> AsyncIterator[Jobs]:
        spawning = ground.spawning()
        jobs = Jobs(None, spawning, ground.cgroups, ground.config.state_dir, tmp_path)  # type: ignore[arg-type]
        jobs.runtime = await JobRuntime.open(
            JobConfig(state_dir=jobs.state_dir, user=user or own_user(tmp_path), segment_bytes=1 << 20),
            spawning.connect,
            ground.cgroups,
            on_update=jobs.on_update,
            accepted=accepted,
        )
        try:
            yield jobs
        finally:
            await jobs.runtime.close()
            spawning.close()

    return open_


@pytest_asyncio.fixture
async def jobs(open_jobs: OpenJobs) -> AsyncIterator[Jobs]:
    async with open_jobs() as opened:
        yield opened
