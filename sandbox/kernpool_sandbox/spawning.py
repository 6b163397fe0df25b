"""The node's spawner as this runtime uses it: started when missing, found again, told each template once."""

import asyncio
import contextlib
import logging
import os
from pathlib import Path
from typing import final

from kernpool_sandbox.kpinit.errors import KpInitError
from kernpool_sandbox.kpinit.launch import SpawnerConfig, ensure_spawner
from kernpool_sandbox.kpinit.plan import ChildEnded, Ended
from kernpool_sandbox.kpinit.spawner import SpawnerClient
from kernpool_sandbox.template import PlannedTemplate

log = logging.getLogger(__name__)


@final
class Spawning:
    """One connection to the spawner, renewed when it breaks."""

    def __init__(self, config: SpawnerConfig, binary: Path) -> None:
        self._config = config
        self._binary = binary
        self._client: SpawnerClient | None = None
        self._connecting: asyncio.Task[SpawnerClient] | None = None
        self._defined: dict[str, asyncio.Task[None]] = {}
        """Templates that the spawner was told of (or is being told), by key."""
        self._children: set[str] = set()
        """Slots whose end this spawner will report."""
        self._stopping = False
        self._waiting: dict[str, asyncio.Future[None]] = {}
        """Who waits for a child to be reaped."""

    @property
    def client(self) -> SpawnerClient:
        """The connection; `connect` has made it."""
        assert self._client is not None
        return self._client

    async def connect(self) -> SpawnerClient:
        """Return the connection to a spawner that answers, starting one if there is none. KpInitError."""
        if self._client is not None:
            return self._client
        if self._connecting is None:
            self._connecting = asyncio.ensure_future(self._connect())
            self._connecting.add_done_callback(self._connected)
        return await asyncio.shield(self._connecting)

    async def spawn(self, name: str, planned: PlannedTemplate, uid_start: int, cgroups: tuple[str, ...]) -> str:
        """Clone a sandbox and return the path of its socket. KpInitError, OSError."""
        client = await self.connect()
        defined = self._defined.get(planned.key)
        if defined is None or not defined.done():
            await self._define(planned)
        self._children.add(name)
        spawned = await client.spawn(name, planned.plan(uid_start, cgroups), template=planned.key)
        os.close(spawned.pidfd)  # the connection to its PID 1 brings one, too
        return spawned.socket_path

    async def kill(self, name: str) -> None:
        """Kill a sandbox that this process may not signal, or has no connection to; one that is gone is no error."""
        try:
            await (await self.connect()).kill(name)
        except ProcessLookupError:
            return
        except (KpInitError, OSError) as error:
            log.warning("the spawner could not kill %s: %s", name, error)

    def will_reap(self, name: str) -> bool:
        """Whether a slot is a child of this spawner that it has not yet reported as reaped."""
        return name in self._children

    async def reaped(self, name: str, timeout_s: float) -> None:
        """Wait for the spawner's hint that it has reaped a child and finished its record."""
        if name not in self._children:
            return
        waiting = self._waiting.get(name)
        if waiting is None:
            waiting = self._waiting[name] = asyncio.get_running_loop().create_future()
        await asyncio.wait([waiting], timeout=timeout_s)

    async def stop(self) -> None:
        """Make the spawner exit; one that is gone already is no error."""
        self._stopping = True
        with contextlib.suppress(KpInitError, OSError):
            await self.client.stop()

    def close(self) -> None:
        """Let go of the spawner; it goes on."""
        if self._client is not None:
            self._client.close()
            self._client = None

    async def _define(self, planned: PlannedTemplate) -> None:
        task = self._defined.get(planned.key)
        if task is None:
            task = self._defined[planned.key] = asyncio.ensure_future(
                self.client.define_template(planned.key, planned.ops)
            )
        try:
            await asyncio.shield(task)
        except BaseException:
            self._defined.pop(planned.key, None)
            raise

    async def _connect(self) -> SpawnerClient:
        log_path = self._config.state_dir / "spawner.log"
        await ensure_spawner(self._config, self._binary, log_path=log_path)
        client = await SpawnerClient.connect(self._config.socket_path, self._on_event)
        self._defined.clear()
        self._children = {child.id for child in await client.list()}
        self._client = client
        return client

    def _connected(self, task: "asyncio.Task[SpawnerClient]") -> None:
        self._connecting = None
        if not task.cancelled():
            task.exception()

    def _on_event(self, event: ChildEnded | Ended) -> None:
        match event:
            case ChildEnded(id=name):
                self.forget(name)
            case Ended():
                self._lost()

    def _lost(self) -> None:
        """The spawner is gone; its children live on, and a new one is started with the next request."""
        if self._client is not None and not self._stopping:
            log.warning("the spawner is gone; a new one is started when it is needed")
        if self._client is not None:
            self._client.close()
            self._client = None
        for name in list(self._children):
            self.forget(name)

    def forget(self, name: str) -> None:
        """A child is reaped, or its slot is given back: nothing more is expected of it."""
        self._children.discard(name)
        waiting = self._waiting.pop(name, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)
