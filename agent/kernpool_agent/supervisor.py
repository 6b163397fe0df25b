"""The agent's daemon: opens the node, enrols, keeps the link, hands messages to their parts, and lets go in the end.

    open and adopt --> READY --> enrol (once) --> own listener --> link, again and again --> SIGTERM: detach
                                                                                         --> SIGUSR1: end all work

Each notable step logs one sentence. A coordinator that is away, refuses, or lies never touches the work.
"""

import asyncio
import gc
import itertools
import logging
import os
import signal
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, final

from kernpool_agent import __version__, enrol, machine
from kernpool_agent.backoff import Backoff
from kernpool_agent.config import Config
from kernpool_agent.connection import Connection
from kernpool_agent.datakeys import DataKeys
from kernpool_agent.dataplane.access import DoorAuthorizer
from kernpool_agent.dataplane.listener import Listener
from kernpool_agent.dataplane.plane import make_app
from kernpool_agent.dataplane.server import DataServer
from kernpool_agent.dataplane.streams import StreamDoor
from kernpool_agent.errors import UnreachableError
from kernpool_agent.metrics import Sample
from kernpool_agent.node import Node, open_node
from kernpool_agent.renew import Renewal
from kernpool_agent.systemd import Notifier
from kernpool_mesh import messages as m
from kernpool_mesh.stream import LinkStream
from kernpool_tls.contexts import data_plane_listener_context, reload_certificate
from kernpool_tls.errors import IdentityError
from kernpool_tls.identity import Identity
from kernpool_tls.keys import NodeKeys
from kernpool_tls.names import COORDINATOR_DNS_NAME

log = logging.getLogger(__name__)

SNAPSHOT_ROWS = 100
"""Attempts or sandboxes in one Snapshot."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@final
class Supervisor:
    """One run of the agent; also the link's host (connection.Host)."""

    def __init__(self, config: Config, notifier: Notifier) -> None:
        self._config = config
        self._notifier = notifier
        self._stopping = asyncio.Event()
        self._end_work = False
        """The stop is to end all work instead of detaching from it."""

    def stop(self, *, end_work: bool = False) -> None:
        """Begin the end of this run; a second call may still add `end_work`."""
        self._end_work = self._end_work or end_work
        self._stopping.set()

    async def run(self) -> None:
        """Run until `stop`. Raises FatalError and what `open_node` raises."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGUSR1, lambda: self.stop(end_work=True))
        async with open_node(self._config) as node:
            self._notifier.ready("work is taken over")
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._notifier.ping_watchdog(), name="watchdog"),
                    group.create_task(node.attempts.repeat_ends(self._config.ended_repeat_s), name="repeat ends"),
                    group.create_task(Membership(self._config, node, self._notifier).run(), name="membership"),
                ]
                await self._stopping.wait()
                self._notifier.stopping()
                if self._end_work:
                    await node.end_all_work()
                for task in tasks:
                    task.cancel()
            log.info("stopped; %s", "all work was ended" if self._end_work else "all work goes on")


@final
class Membership:
    """This node as a member of its cluster: identity, own listener and link, until cancelled."""

    def __init__(self, config: Config, node: Node, notifier: Notifier) -> None:
        self._config = config
        self._node = node
        self._notifier = notifier
        self._keys = NodeKeys(config.state_dir / "identity")
        self._data_keys = DataKeys()
        self._incarnation = node.state_dir.next_incarnation()
        self._inventory: m.Inventory | None = None
        """What was last told; None before the first look."""
        self._data_plane: tuple[str, int] | None = None
        """(host, port) of the own listener."""
        self._node_id = ""
        self._handlers = self._make_handlers()

    async def run(self) -> None:
        """Enrol if need be, then serve and link for ever. Raises EnrolRefusedError before the first identity."""
        identity = await self._identity()
        self._node_id = identity.node_id
        self._renewal = Renewal(
            keys=self._keys,
            identity=identity,
            url=self._config.coordinator,
            uplink=self._node.uplink,
            clock=self._node.clock,
            timeout_s=self._config.dial_timeout_s,
        )
        server = await DataServer.open(self._app())
        self._stream_door = StreamDoor(server)
        listener = await self._listen(server)
        self._connection = Connection(
            url=self._config.coordinator,
            tls=self._renewal.client_context,
            host=self,
            uplink=self._node.uplink,
            clock=self._node.clock,
            backoff=Backoff(self._config.reconnect_s_min, self._config.reconnect_s_max),
            dial_timeout_s=self._config.dial_timeout_s,
            server_hostname=COORDINATOR_DNS_NAME,
        )
        self._node.metrics.read_from(self._samples)
        await self._look()
        gc.collect()
        gc.freeze()  # what stands now stands for good: the collector need not walk it again
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._connection.run(), name="link")
                group.create_task(self._renewal.run(), name="renewal")
                group.create_task(self._look_again(), name="inventory")
        finally:
            await self._connection.close("the agent stops; its work goes on")
            if listener is not None:
                await listener.close()
            await server.close()

    # --- becoming a member ---

    async def _identity(self) -> Identity:
        known = self._keys.identity()
        if known is not None:
            log.info("this is %s of cluster %s", known.node_id, known.cluster_id)
            return known
        token = enrol.read_token(self._config.join_token_file)
        backoff = Backoff(self._config.reconnect_s_min, self._config.reconnect_s_max)
        for attempt in itertools.count():
            try:
                return await enrol.enrol(
                    self._keys,
                    token,
                    self._config.coordinator,
                    self._config.name or os.uname().nodename,
                    timeout_s=self._config.dial_timeout_s,
                )
            except UnreachableError as error:
                if attempt == 0:
                    log.warning("not enrolled yet, trying again: %s", error)
            await asyncio.sleep(backoff.next_s())
        raise AssertionError("itertools.count never ends")

    def _app(self) -> Any:
        authorizer = DoorAuthorizer(self._node_id, self._data_keys.current, self._node.clock.now_unix_s)
        return make_app(
            self._node.runtime,
            self._node.jobs,
            authorizer,
            metrics_text=self._node.metrics.text,
            node_id=self._node_id,
        )

    async def _listen(self, server: DataServer) -> Listener | None:
        if not self._config.data_listen:
            return None
        context = data_plane_listener_context(self._keys.identity_file)
        host, _, port = self._config.data_listen.rpartition(":")
        host = host.strip("[]")
        listener = await Listener.open(server, context, [host], int(port))
        self._data_plane = (host, listener.port)
        self._renewal.on_renewed = lambda: self._reload(context)
        log.info("data plane: %s port %d", host, listener.port)
        return listener

    def _reload(self, context: ssl.SSLContext) -> None:
        try:
            reload_certificate(context, self._keys.identity_file)
        except (IdentityError, OSError) as error:
            log.warning("the data plane's listener keeps its old certificate: %s", error)

    # --- looking at the node ---

    async def _look(self) -> None:
        seen = await self._node.inventory.take(self._data_plane)
        if seen == self._inventory:
            return
        self._inventory = seen
        self._node.capacity.set_total(seen.total, [gpu.index for gpu in seen.gpus if gpu.healthy])
        self._node.uplink.tell(seen)
        for problem in [*seen.isolation_problems, *seen.facts.get("gpu_problems", [])]:
            log.warning("%s", problem)

    async def _look_again(self) -> None:
        while True:
            await asyncio.sleep(self._config.inventory_interval_s)
            await self._look()

    # --- connection.Host ---

    def hello(self) -> m.Hello:
        """Return the greeting."""
        boot_id = BOOT_ID.read_text(encoding="ascii").strip()
        return m.Hello(m.PROTO_MIN, m.PROTO_MAX, self._node_id, self._incarnation, boot_id, __version__)

    def heartbeat(self, seq: int) -> m.Heartbeat:
        """Return a sign of life with what is free."""
        free = self._node.capacity.free()
        free.disk_mib = min(free.disk_mib, self._disk_left_mib())
        counts = self._node.runtime.statistics()
        return m.Heartbeat(
            seq=seq,
            free=free,
            load_1m=os.getloadavg()[0],
            memory_available_mib=machine.memory_available_mib(),
            sandboxes_running=counts.running,
            sandboxes_parked=counts.parked,
        )

    def on_linked(self, welcome: m.Welcome) -> None:
        """Tell what is here; all of it before anything that changes afterwards."""
        self._data_keys.learn(welcome.data_key_id, welcome.data_key)
        if self._inventory is not None:
            self._node.uplink.tell(self._inventory)
        for snapshot in snapshots(self._node.attempts.statuses(), self._node.sandboxes.statuses()):
            self._node.uplink.tell(snapshot)
        self._notifier.status(f"linked to {welcome.coordinator_id} as {self._node_id}")

    def on_message(self, message: m.Message) -> None:
        """Hand a message to its part."""
        handler = self._handlers.get(type(message))
        if handler is None:
            log.warning("%s from the coordinator is not for an agent: dropped", type(message).__name__)
        else:
            handler(message)

    def on_stream(self, stream: LinkStream) -> None:
        """Serve a tunnelled request."""
        self._stream_door.serve(stream)

    def _make_handlers(self) -> dict[type[m.Message], Callable[[Any], None]]:
        attempts, sandboxes = self._node.attempts, self._node.sandboxes
        return {
            m.StartAttempt: attempts.start,
            m.StopAttempt: attempts.stop,
            m.AckAttempts: attempts.ack,
            m.ForgetJobs: attempts.forget,
            m.CreateSandboxes: sandboxes.create,
            m.RemoveSandboxes: sandboxes.remove,
            m.ExtendSandbox: sandboxes.extend,
            m.SetPools: sandboxes.set_pools,
            m.CertificateIssued: self._on_issued,
            m.DataKey: lambda key: self._data_keys.learn(key.key_id, key.key),
        }

    def _on_issued(self, issued: m.CertificateIssued) -> None:
        self._renewal.on_issued(issued)

    def _disk_left_mib(self) -> int:
        return max(0, machine.disk_free_mib(self._config.work_dir) - self._config.reserved_disk_mib)

    def _samples(self) -> Iterator[Sample]:
        node, connection = self._node, self._connection
        free, counts = node.capacity.free(), node.runtime.statistics()
        yield Sample("linked", "Whether a coordinator is linked", float(node.uplink.linked))
        yield Sample("links", "Links greeted since the start", connection.links, counter=True)
        yield Sample("heartbeat_round_trip_seconds", "Of the last heartbeat", connection.round_trip_s)
        yield Sample("free_cpu_cores", "CPUs that may still be promised", free.cpu_millis / 1000)
        yield Sample("free_memory_bytes", "Memory that may still be promised", free.memory_mib << 20)
        yield Sample("free_gpus", "GPUs that may still be promised", free.gpus)
        yield Sample("sandboxes", "Sandboxes by state", counts.running, (("state", "running"),))
        yield Sample("sandboxes", "Sandboxes by state", counts.parked, (("state", "parked"),))
        yield Sample("sandboxes_created", "Sandboxes made", node.sandboxes.created, counter=True)
        yield Sample("sandboxes_refused", "Sandboxes not made", node.sandboxes.refused, counter=True)
        yield Sample("attempts_started", "Job attempts started", node.attempts.started, counter=True)
        yield Sample("attempts_running", "Job attempts that may run", node.attempts.running)
        yield Sample("journal_records", "Records written", node.journal.records_written, counter=True)
        yield Sample("journal_fsyncs", "Fsyncs of the journal", node.journal.fsyncs, counter=True)
        life_left = self._renewal.identity.life_left(node.clock.now_unix_s())
        yield Sample("certificate_life_left_ratio", "Part of the certificate's life that is left", life_left)


def snapshots(attempts: list[m.AttemptStatus], sandboxes: list[m.SandboxStatus]) -> list[m.Snapshot]:
    """Split what the node holds into messages, the last of them marked; an empty node sends one."""
    rows = max(len(attempts), len(sandboxes))
    starts = range(0, max(rows, 1), SNAPSHOT_ROWS)
    return [
        m.Snapshot(attempts[at : at + SNAPSHOT_ROWS], sandboxes[at : at + SNAPSHOT_ROWS], last=at == starts[-1])
        for at in starts
    ]
