"""A real spawner in a state directory of its own, as root or as an ordinary user, and sandboxes made by it."""

import asyncio
import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kernpool_sandbox.kpinit.binary import find
from kernpool_sandbox.kpinit.channel import wait_fd
from kernpool_sandbox.kpinit.errors import GoneError
from kernpool_sandbox.kpinit.init import InitClient
from kernpool_sandbox.kpinit.launch import SpawnerConfig, spawner_argv
from kernpool_sandbox.kpinit.plan import (
    ChildEnded,
    Dev,
    Dir,
    Ended,
    ExecExited,
    ExecRow,
    ExecSpec,
    File,
    InitEvent,
    Mask,
    MountOp,
    Overlay,
    Proc,
    ReadOnly,
    SandboxPlan,
    Spawned,
    Staging,
    Symlink,
    Tmpfs,
)
from kernpool_sandbox.kpinit.record import EndRecord, read_end_record
from kernpool_sandbox.kpinit.spawner import SpawnerClient

ORDINARY_UID = 61234
UID_BASE = 0x50000000
RANGE = 65536
PASSWD = b"root:x:0:0::/root:/bin/sh\nbob:x:1000:1000::/home/bob:/bin/sh\n"
GROUP = b"root:x:0:\nbob:x:1000:\nstaff:x:50:bob\n"
DEADLINE_S = 20.0
POLL_S = 0.005


async def poll(condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait for a condition; fail when it does not come."""
    end = asyncio.get_running_loop().time() + deadline_s
    while not condition():
        assert asyncio.get_running_loop().time() < end, f"not within {deadline_s} s: {what}"
        await asyncio.sleep(POLL_S)


@functools.cache
def can_idmap() -> bool:
    """Tell whether /usr and the tests' own directories can be idmapped: not on every filesystem (overlay cannot)."""
    done = subprocess.run(
        [sys.executable, "-m", "kernpool_sandbox.probe", tempfile.gettempdir()],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    return not json.loads(done.stdout)["idmap"]


@pytest.fixture
def needs_idmap() -> None:
    """Skip a story about an image that is shared by idmapped mounts."""
    if not can_idmap():
        pytest.skip("the filesystem here knows no idmapped mounts")


def base_ops(*, idmap: bool, extra: tuple[MountOp, ...] = ()) -> tuple[MountOp, ...]:
    """Return a small host image: /usr, made-up /etc, own /proc and /dev."""
    return (
        Staging(64 << 20),
        Overlay("/usr", ("/usr",), idmap=True) if idmap else _usr_read_only(),
        *(Symlink(f"/{name}", f"usr/{name}") for name in ("bin", "sbin", "lib", "lib64")),
        Tmpfs("/tmp", 16 << 20, 0o1777),
        Dir("/root", 0o700),
        Dir("/home/bob", 0o755),
        File("/etc/passwd", 0o644, PASSWD),
        File("/etc/group", 0o644, GROUP),
        File("/etc/machine-id", 0o444, b""),
        Proc(),
        Dev(),
        Mask("/proc/kcore"),
        Mask("/proc/keys"),
        ReadOnly("/proc/sys"),
        *extra,
    )


def _usr_read_only() -> MountOp:
    from kernpool_sandbox.kpinit.plan import Bind

    return Bind("/usr", "/usr")


@dataclass
class Result:
    """What one command did."""

    exit: ExecExited
    stdout: bytes
    stderr: bytes

    @property
    def code(self) -> int:
        return self.exit.exit_code


async def read_all(fd: int) -> bytes:
    """Read a descriptor to its end and close it."""
    data = b""
    try:
        while True:
            try:
                chunk = os.read(fd, 65536)
            except BlockingIOError:
                await wait_fd(fd, timeout_s=DEADLINE_S)
                continue
            if not chunk:
                return data
            data += chunk
    finally:
        os.close(fd)


@dataclass
class Box:
    """One sandbox with its client; events are kept until somebody waits for them."""

    id: str
    spawned: Spawned
    client: InitClient
    exits: dict[int, asyncio.Future[ExecExited]] = field(default_factory=dict)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    next_id: int = 100

    def on_event(self, event: InitEvent) -> None:
        if isinstance(event, Ended):
            self.gone.set()
        else:
            self.exit_of(event.exec_id).set_result(event)

    def exit_of(self, exec_id: int) -> "asyncio.Future[ExecExited]":
        return self.exits.setdefault(exec_id, asyncio.get_running_loop().create_future())

    async def wait_ended(self, exec_id: int) -> ExecRow:
        """Wait until the table says that an exec has ended, as one must who attached after its end."""
        for _ in range(2000):
            rows = {row.exec_id: row for row in await self.client.list()}
            if exec_id in rows and not rows[exec_id].running:
                return rows[exec_id]
            await asyncio.sleep(POLL_S)
        raise AssertionError(f"exec {exec_id} did not end")

    async def run(self, *argv: str, stdin: bytes | None = None, ack: bool = True, **spec: object) -> Result:
        """Run a command to its end with all its output."""
        self.next_id += 1
        exec_id = self.next_id
        started = await self.client.exec(ExecSpec(exec_id, argv, stdin=stdin is not None, **spec))  # type: ignore[arg-type]
        if stdin is not None:
            os.write(started.stdin_fd, stdin)
            os.close(started.stdin_fd)
        stdout, stderr = await asyncio.gather(read_all(started.stdout_fd), read_all(started.stderr_fd))
        exited = await asyncio.wait_for(self.exit_of(exec_id), DEADLINE_S)
        if ack:
            await self.client.ack(exec_id)
        return Result(exited, stdout, stderr)

    async def sh(self, script: str, **spec: object) -> str:
        """Run a shell script that must succeed and return its output."""
        result = await self.run("sh", "-c", script, **spec)  # type: ignore[arg-type]
        assert result.code == 0, (result.exit, result.stdout, result.stderr)
        return result.stdout.decode()


class Node:
    """One spawner and what it made."""

    def __init__(self, config: SpawnerConfig, process: subprocess.Popen[bytes], binary: Path, uid: int) -> None:
        self.config = config
        self.process = process
        self.binary = binary
        self.uid = uid
        self.client: SpawnerClient
        self.ended: list[ChildEnded] = []
        self.boxes: list[Box] = []
        self._number = 0
        self._clients: list[InitClient] = []

    @property
    def privileged(self) -> bool:
        return self.client.privileged

    async def connect(self) -> None:
        end = asyncio.get_running_loop().time() + DEADLINE_S
        while True:
            try:
                self.client = await SpawnerClient.connect(self.config.socket_path, self._on_event)
            except GoneError:
                assert asyncio.get_running_loop().time() < end, "the spawner did not come up"
                await asyncio.sleep(POLL_S)
            else:
                return

    def _on_event(self, event: ChildEnded | Ended) -> None:
        if isinstance(event, ChildEnded):
            self.ended.append(event)

    def new_id(self) -> str:
        self._number += 1
        return f"sb-{os.getpid()}-{self._number}"

    def plan(self, *extra: MountOp, **fields: object) -> SandboxPlan:
        """Return a plan with an id range of its own."""
        ids = {"uid_map_start": UID_BASE + RANGE * self._number, "uid_map_count": RANGE} if self.privileged else {}
        settings = {"ops": base_ops(idmap=self.privileged and can_idmap(), extra=extra), **ids, **fields}
        return SandboxPlan(**settings)  # type: ignore[arg-type]

    async def park(self, *extra: MountOp, sandbox_id: str = "", **fields: object) -> Box:
        """Make a sandbox and attach to it."""
        name = sandbox_id or self.new_id()
        spawned = await self.client.spawn(name, self.plan(*extra, **fields))
        return await self.attach(name, spawned)

    async def attach(self, name: str, spawned: Spawned) -> Box:
        """Attach (again) to a sandbox."""
        box = Box(name, spawned, None)  # type: ignore[arg-type]
        box.client = await InitClient.attach(spawned.socket_path, box.on_event)
        self.boxes.append(box)
        return box

    async def box(self, *extra: MountOp, **fields: object) -> Box:
        """Make a sandbox and claim it for a minute."""
        box = await self.park(*extra, **fields)  # type: ignore[arg-type]
        await box.client.claim("token", ttl_s=60)
        return box

    def record(self, name: str) -> EndRecord | None:
        return read_end_record(self.config.state_dir, name)

    async def wait_record(self, name: str, deadline_s: float = DEADLINE_S) -> EndRecord:
        await poll(lambda: self.record(name), f"the end record of {name}", deadline_s)
        record = self.record(name)
        assert record is not None
        return record

    async def close(self) -> None:
        for box in self.boxes:
            box.client.close()
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(box.spawned.pidfd, signal.SIGKILL)
            await wait_fd(box.spawned.pidfd, timeout_s=DEADLINE_S)
            os.close(box.spawned.pidfd)
        self.client.close()
        self.process.terminate()
        self.process.wait(DEADLINE_S)


def start_spawner(config: SpawnerConfig, binary: Path, uid: int, **options: object) -> subprocess.Popen[bytes]:
    """Start a spawner in the foreground as a user."""
    who = {} if uid == os.geteuid() else {"user": uid, "group": uid, "extra_groups": []}
    return subprocess.Popen(spawner_argv(binary, config), **who, **options)  # type: ignore[call-overload, no-any-return]


@pytest.fixture(scope="session")
def kp_init() -> Path:
    """The program, built from this tree."""
    return find()


@pytest.fixture
def state_dir() -> Iterator[Path]:
    """A short path that an ordinary user can reach."""
    directory = Path(tempfile.mkdtemp(prefix="kp-", dir="/tmp"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


def _need_namespaces(uid: int) -> None:
    probe = ["unshare", "-Ur", "true"] if uid else ["unshare", "-m", "true"]
    who = {} if uid == os.geteuid() else {"user": uid, "group": uid, "extra_groups": []}
    done = subprocess.run(probe, capture_output=True, text=True, check=False, **who)  # type: ignore[call-overload]
    if done.returncode != 0:
        pytest.skip(f"this machine lets uid {uid} make no namespaces: {done.stderr.strip()}")


@contextlib.asynccontextmanager
async def _node(state_dir: Path, kp_init: Path, uid: int, owner_uid: int | None = None) -> AsyncIterator[Node]:
    _need_namespaces(uid)
    work = state_dir / "work"
    binary = Path(shutil.copy(kp_init, state_dir / "kp-init"))
    cgroups = tuple(path for path in (Path("/sys/fs/cgroup"),) if path.is_dir())
    ids = ((0, 0), (ORDINARY_UID, ORDINARY_UID), (UID_BASE, UID_BASE + RANGE * 1000)) if uid == 0 else ()
    config = SpawnerConfig(
        work,
        allow_sources=(Path("/usr"), state_dir),
        allow_cgroups=cgroups,
        allow_uids=ids,
        runtime_dir=work / "s",
        owner_uid=owner_uid,
    )
    if uid != os.geteuid():
        os.chown(state_dir, uid, uid)
    node = Node(config, start_spawner(config, binary, uid), binary, uid)
    try:
        await node.connect()
        yield node
    finally:
        await node.close()


@pytest.fixture
async def node(state_dir: Path, kp_init: Path) -> AsyncIterator[Node]:
    """A spawner as the user of the tests: privileged when that is root."""
    async with _node(state_dir, kp_init, os.geteuid()) as node:
        yield node


@pytest.fixture
def make_node(state_dir: Path) -> "Callable[[Path], contextlib.AbstractAsyncContextManager[Node]]":
    """A spawner of another build of the program."""
    return lambda program: _node(state_dir, program, os.geteuid())


@pytest.fixture
async def root_node(state_dir: Path, kp_init: Path) -> AsyncIterator[Node]:
    """A privileged spawner."""
    if os.geteuid() != 0:
        pytest.skip("needs root: maps id ranges and layers")
    async with _node(state_dir, kp_init, 0) as node:
        yield node


@pytest.fixture
async def rootless_node(state_dir: Path, kp_init: Path) -> AsyncIterator[Node]:
    """A spawner of an ordinary user."""
    uid = os.geteuid() or ORDINARY_UID
    async with _node(state_dir, kp_init, uid) as node:
        yield node


@pytest.fixture
def second_spawner() -> Callable[[Node], "subprocess.Popen[bytes]"]:
    """Start another spawner with the configuration of a node."""
    return lambda node: start_spawner(node.config, node.binary, node.uid)


@pytest.fixture
def restart_spawner() -> Callable[..., Awaitable[None]]:
    """Kill a node's spawner and start the next one."""

    async def restart(node: Node, **options: object) -> None:
        node.client.close()
        node.process.kill()
        node.process.wait(DEADLINE_S)
        node.process = start_spawner(node.config, node.binary, node.uid, **options)
        await node.connect()

    return restart


@pytest.fixture
def second_owner() -> "Callable[[Node, int], contextlib.AbstractAsyncContextManager[Node]]":
    """A root spawner whose agent is another user."""

    def start(node: Node, owner_uid: int) -> contextlib.AbstractAsyncContextManager[Node]:
        other = node.config.state_dir.parent / "owned"
        other.mkdir()
        return _node(other, node.binary, 0, owner_uid)

    return start


@pytest.fixture
def until() -> Callable[..., Awaitable[None]]:
    """Wait for a condition with a deadline."""
    return poll
