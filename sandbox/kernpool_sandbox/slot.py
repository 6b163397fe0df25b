"""One kp-init sandbox as the agent holds it: its connection, its commands, its death, and what it was lent."""

import asyncio
import signal
from collections.abc import Callable
from typing import final

from kernpool_mesh.reasons import EndReason
from kernpool_sandbox.cgroup_pool import CgroupLease, CgroupPool
from kernpool_sandbox.kpinit.init import InitClient
from kernpool_sandbox.kpinit.plan import Ended, ExecExited, InitEvent
from kernpool_sandbox.pipes import Dropped, PipeReader
from kernpool_sandbox.runner import Execution

FORGET_AFTER_S = 0.05
FORGET_AT_ONCE = 16
"""PID 1 keeps at most 256 commands, running or not yet forgotten."""


@final
class Slot:
    """Owns the client's connection; the cgroup and uid range go back when the runtime releases the slot."""

    __slots__ = (
        "_cgroups",
        "_client",
        "_execs",
        "_loop",
        "_next_exec_id",
        "_on_dead",
        "_orphans",
        "_over",
        "_watching",
        "claimed_by",
        "dead",
        "end",
        "key",
        "last_used_s",
        "lease",
        "name",
        "uid_index",
    )

    def __init__(self, name: str, key: str, lease: CgroupLease, uid_index: int, cgroups: CgroupPool) -> None:
        self.name = name
        self.key = key
        """Key of its template."""
        self.lease = lease
        self.uid_index = uid_index
        self.claimed_by = ""
        """Id of the sandbox that it serves; empty: parked, or being made."""
        self.last_used_s = 0.0
        """When a command or file operation last began or ended (monotonic); for the idle end."""
        self.dead = False
        """Its PID 1 is gone."""
        self.end: tuple[EndReason, str] | None = None
        """Why it is over, once that is known; commands that run in it are told so."""
        self._cgroups = cgroups
        self._client: InitClient | None = None
        self._execs: dict[int, Execution] = {}
        """Commands of this agent that run."""
        self._orphans: dict[int, tuple[PipeReader, PipeReader]] = {}
        """Commands of an earlier agent that still run; their output is dropped, nobody waits for it."""
        self._next_exec_id = 1
        self._over: list[int] = []
        """Commands that ended and that PID 1 may forget; told a little later, most sandboxes are removed before."""
        self._loop = asyncio.get_running_loop()
        self._on_dead: Callable[[Slot], None] | None = None
        self._watching = False
        """The pidfd is watched: the connection has ended, the process may not yet have."""

    @property
    def client(self) -> InitClient:
        """The connection to its PID 1."""
        assert self._client is not None, f"slot {self.name} has no connection"
        return self._client

    @property
    def connected(self) -> bool:
        """Whether it was ever attached."""
        return self._client is not None

    @property
    def busy(self) -> bool:
        """Whether a command runs in it."""
        return bool(self._execs) or bool(self._orphans)

    async def attach(self, path: str, on_dead: Callable[["Slot"], None], timeout_s: float) -> None:
        """Connect to its PID 1; `on_dead` is called once when that is gone. KpInitError, OSError."""
        self._on_dead = on_dead
        self._client = await InitClient.attach(path, self.on_event, timeout_s=timeout_s)

    async def take_over_commands(self) -> None:
        """Care for the commands of an earlier agent: read and drop what they write, forget them when they end."""
        for row in await self.client.list():
            self._next_exec_id = max(self._next_exec_id, row.exec_id + 1)
            if not row.running:
                await self.client.ack(row.exec_id)
                continue
            streams = await self.client.reattach(row.exec_id)  # what was kept for nobody is dropped with the rest
            readers = self._orphans[row.exec_id] = (
                PipeReader(self._loop, streams.stdout.fd, Dropped(), _nothing),
                PipeReader(self._loop, streams.stderr.fd, Dropped(), _nothing),
            )
            for reader in readers:
                reader.resume()

    def touch(self) -> None:
        """It is in use now: its idle time begins anew."""
        self.last_used_s = self._loop.time()

    # --- commands ---

    def new_exec_id(self) -> int:
        """Return an id that no command of this sandbox ever had."""
        exec_id = self._next_exec_id
        self._next_exec_id += 1
        return exec_id

    def register(self, exec_id: int, execution: Execution) -> None:
        """Route the exit of a command that is about to start; before the request, for its exit may come first."""
        self._execs[exec_id] = execution

    def unregister(self, exec_id: int) -> None:
        """Forget a command that did not start."""
        self._execs.pop(exec_id, None)

    def forget_later(self, exec_id: int) -> None:
        """Let PID 1 forget an ended command, when there is time."""
        if not self._over:
            self._loop.call_later(FORGET_AFTER_S, self._forget_all)
        self._over.append(exec_id)
        if len(self._over) >= FORGET_AT_ONCE:
            self._forget_all()

    def _forget_all(self) -> None:
        over, self._over = self._over, []
        if not self.dead and self.end is None:
            for exec_id in over:
                self._forget(exec_id)

    def _forget(self, exec_id: int) -> None:
        self._loop.create_task(self.client.ack(exec_id)).add_done_callback(_consume)

    def oom_kills(self) -> int:
        """Return the OOM counter of its cgroup."""
        return self._cgroups.oom_kills(self.lease.name)

    def oom_kills_so_far(self) -> int:
        """Return the OOM counter before a command; for the first one it is known from when the cgroup was taken."""
        return self.lease.oom_kills_before if self._next_exec_id <= 2 else self.oom_kills()

    # --- its end ---

    def kill(self) -> bool:
        """Send SIGKILL to its PID 1, and so to all in it; False where this process may not (then ask the spawner)."""
        if self.dead or self._client is None or self.client.hello.pidfd < 0:
            return self.dead
        try:
            signal.pidfd_send_signal(self.client.hello.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return True

    def tell_end(self, reason: EndReason, detail: str) -> None:
        """Say why it is over; whoever waits for a command in it is told so."""
        self.end = (reason, detail)
        for execution in list(self._execs.values()):
            execution.lost(reason, detail)
        self._execs.clear()

    def close(self) -> None:
        """Let go of the connection and every pipe."""
        self._unwatch()
        for execution in self._execs.values():
            execution.close()
        for readers in self._orphans.values():
            for reader in readers:
                reader.close()
        self._orphans.clear()
        if self._client is not None:
            self._client.close()

    # --- events of its PID 1 ---

    def on_event(self, event: InitEvent) -> None:
        """Take an event of the connection."""
        match event:
            case ExecExited():
                execution = self._execs.pop(event.exec_id, None)
                if execution is not None:
                    execution.exited(event)
                elif (orphan := self._orphans.pop(event.exec_id, None)) is not None:
                    self._orphan_ended(event.exec_id, orphan)
            case Ended():
                self._connection_ended()

    def _orphan_ended(self, exec_id: int, readers: tuple[PipeReader, PipeReader]) -> None:
        for reader in readers:
            reader.close()
        self._forget(exec_id)

    def _connection_ended(self) -> None:
        """The socket is closed first; the process is gone when its pidfd says so."""
        pidfd = self._client.hello.pidfd if self._client is not None else -1
        if pidfd < 0:
            self._died()
        elif not self._watching:
            self._watching = True
            self._loop.add_reader(pidfd, self._died)

    def _died(self) -> None:
        self._unwatch()
        if not self.dead:
            self.dead = True
            if self._on_dead is not None:
                self._on_dead(self)

    def _unwatch(self) -> None:
        if self._watching and self._client is not None:
            self._watching = False
            self._loop.remove_reader(self._client.hello.pidfd)


def _nothing() -> None:
    """An orphan's pipe ended: its exit is what counts."""


def _consume(task: "asyncio.Task[None]") -> None:
    """The sandbox may be gone before the answer comes; then there is nothing to forget any more."""
    if not task.cancelled():
        task.exception()
