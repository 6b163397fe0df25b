"""Puts the rooms of the core together and loads what the store has: the one place that knows them all."""

import random
import secrets
from dataclasses import dataclass
from typing import Self, final

from kernpool_coordinator.clusters.rows import read_clusters
from kernpool_coordinator.clusters.service import ClusterService
from kernpool_coordinator.core.clock import Clock
from kernpool_coordinator.core.config import CoreConfig
from kernpool_coordinator.core.fleet import Fleet
from kernpool_coordinator.errors import StoreError
from kernpool_coordinator.events.commits import Commits
from kernpool_coordinator.events.log import EventLog
from kernpool_coordinator.idempotency.keys import Keys
from kernpool_coordinator.jobs.desk import JobDesk
from kernpool_coordinator.jobs.scheduler import Scheduler
from kernpool_coordinator.jobs.service import JobService
from kernpool_coordinator.nodes.enrolment import Enrolments
from kernpool_coordinator.nodes.health import HealthLimits, HealthMachine
from kernpool_coordinator.nodes.links import Links
from kernpool_coordinator.nodes.record import read_certificates, read_nodes
from kernpool_coordinator.nodes.service import NodeService
from kernpool_coordinator.placement import FirstFit
from kernpool_coordinator.sandboxes.book import SandboxBook
from kernpool_coordinator.sandboxes.creates import Creates
from kernpool_coordinator.sandboxes.pools import Pools
from kernpool_coordinator.sandboxes.service import SandboxService
from kernpool_coordinator.store import Seal, Store
from kernpool_coordinator.store.database import sqlite_url
from kernpool_coordinator.tokens.api import ApiTokens
from kernpool_coordinator.tokens.join import JoinTokens

REQUEST_BITS = 40
"""Request numbers start at random below this: no late answer to an earlier coordinator fits one of ours."""


@final
@dataclass(slots=True)
class Rooms:
    """Every room of the core."""

    store: Store
    commits: Commits
    events: EventLog
    keys: Keys
    tokens: ApiTokens
    join_tokens: JoinTokens
    links: Links
    health: HealthMachine
    scheduler: Scheduler
    desk: JobDesk
    jobs: JobService
    clusters: ClusterService
    nodes: NodeService
    enrolments: Enrolments
    sandboxes: SandboxService
    creates: Creates
    pools: Pools
    fleet: Fleet

    @classmethod
    async def open(cls, config: CoreConfig, clock: Clock) -> Self:
        """Open the store, put the rooms together, load them. Raises StoreError."""
        try:
            config.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"the state directory {config.state_dir} cannot be made: {error.strerror}") from error
        seal = Seal.from_file(config.key_file or config.state_dir / "key")
        store = await Store.open(config.database_url or sqlite_url(config.state_dir / "kernpool.db"))
        try:
            rooms = cls._assemble(config, clock, seal, store)
            await rooms._load()
        except BaseException:
            await store.close()
            raise
        return rooms

    @classmethod
    def _assemble(cls, config: CoreConfig, clock: Clock, seal: Seal, store: Store) -> Self:
        events = EventLog(store, clock)
        commits = Commits(store, events)
        keys = Keys()
        links = Links(clock, secrets.randbits(REQUEST_BITS))
        health = HealthMachine(
            HealthLimits(config.suspect_after_s, config.unreachable_after_s, config.node_lost_after_s)
        )
        scheduler = Scheduler(FirstFit(), random.random)
        fleet = Fleet()
        nodes = NodeService(scheduler, links, health, commits, events, clock, fleet)
        desk = JobDesk(
            scheduler, commits, events, links, seal, clock, nodes.address_of,
            start_deadline_s=config.start_deadline_s, reply_timeout_s=config.reply_timeout_s,
        )  # fmt: skip
        book = SandboxBook()
        sandboxes = SandboxService(book, links, commits, events, store, clock, reply_timeout_s=config.reply_timeout_s)
        creates = Creates(
            book, links, commits, keys, clock, fleet,
            cluster_id=config.cluster_id, create_timeout_s=config.create_timeout_s,
        )  # fmt: skip
        join_tokens = JoinTokens(commits, events, clock, config.ca_pin)
        rooms = cls(
            store=store,
            commits=commits,
            events=events,
            keys=keys,
            tokens=ApiTokens(commits, events, clock),
            join_tokens=join_tokens,
            links=links,
            health=health,
            scheduler=scheduler,
            desk=desk,
            jobs=JobService(desk, store, seal, keys, clock),
            clusters=ClusterService(desk, clock),
            nodes=nodes,
            enrolments=Enrolments(nodes, join_tokens, links, commits, events, clock),
            sandboxes=sandboxes,
            creates=creates,
            pools=Pools(links, commits, events, reply_timeout_s=config.reply_timeout_s),
            fleet=fleet,
        )
        fleet.join(rooms.jobs, nodes, sandboxes, creates, rooms.pools, links, scheduler)
        return rooms

    async def _load(self) -> None:
        """Load in the order in which the rooms lean on each other: nodes, what holds them, what runs there."""
        await self.events.load()
        await self.keys.load(self.store)
        await self.tokens.load(self.store)
        await self.join_tokens.load(self.store)
        for node in await self.store.read(read_nodes):
            self.nodes.restore(node)
        for certificate in await self.store.read(read_certificates):
            self.enrolments.restore(certificate)
        for cluster, holdings in await self.store.read(read_clusters):
            self.scheduler.restore_cluster(cluster, holdings)
        await self.jobs.load()
        await self.sandboxes.load()
        await self.pools.load(self.store)

    async def close(self) -> None:
        """Take in what has come, write what is behind, close the store."""
        await self.fleet.close()
        await self.jobs.close()
        self.sandboxes.tick()
        await self.commits.retry()
        await self.store.close()
