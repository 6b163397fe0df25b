"""ControlPlane: everything the HTTP API and the link server may ask of the core, on one page.

Methods raise `kernpool_coordinator.errors` and nothing else. Nobody is checked here for permission but in `authorize`,
which every handler calls once. Dicts are shaped like the body of the same name in `kernpool.bodies` and JSON-ready.
Everything runs on one event loop; nothing here blocks it.
"""

import logging
from collections.abc import AsyncIterator
from typing import Any, Final, Self, final

from kernpool.bodies import (
    ApiTokenRequest,
    CreateSandboxesBody,
    JoinTokenRequest,
    RemoveSandboxesBody,
    SubmitJob,
)
from kernpool_coordinator.core import report
from kernpool_coordinator.core.clock import Clock, SystemClock
from kernpool_coordinator.core.config import CoreConfig
from kernpool_coordinator.core.rooms import Rooms
from kernpool_coordinator.core.session import NodeSession
from kernpool_coordinator.core.shapes import AttemptPlace, Certificate, EnrolledNode, Enrolment, Listing
from kernpool_coordinator.core.ticker import Ticker
from kernpool_coordinator.nodes.service import Greeting
from kernpool_coordinator.tokens import rules
from kernpool_coordinator.tokens.actor import Actor, Verb
from kernpool_coordinator.tokens.rules import Kind
from kernpool_mesh.messages import (
    AttemptUpdate,
    Heartbeat,
    Hello,
    Inventory,
    Message,
    Reply,
    SandboxItems,
    SandboxUpdate,
    Snapshot,
    Welcome,
)

PAGE_MAX: Final = 1_000

Json = dict[str, Any]
logger = logging.getLogger(__name__)


@final
class ControlPlane:
    """The core as its callers see it."""

    def __init__(self, config: CoreConfig, rooms: Rooms, clock: Clock) -> None:
        """Use `open`."""
        self._config = config
        self._rooms = rooms
        self._started_unix_s = clock.now().unix
        self._greeting = Greeting(
            config.coordinator_id, config.cluster_id, config.heartbeat_interval_s, config.features
        )
        self._ticker = Ticker(rooms, clock, events_kept=config.events_kept, jobs_kept=config.jobs_kept)
        self._ticker.start()

    @classmethod
    async def open(cls, config: CoreConfig, clock: Clock | None = None) -> Self:
        """Open the store (migrating it when behind), load every truth, start the ticker."""
        clock = clock or SystemClock()
        return cls(config, await Rooms.open(config, clock), clock)

    async def close(self) -> None:
        """Stop the ticker, commit what is queued, close the store. Jobs and sandboxes go on."""
        await self._ticker.stop()
        await self._rooms.close()

    def tick(self) -> None:
        """One turn of all rooms, as the ticker gives four times a second; for simulations with a clock of their own."""
        self._ticker.tick()

    # --- who ---

    def authenticate(self, token: str) -> Actor:
        """The actor of an API token (`kpt_...`); raises UnauthenticatedError. A dict look-up, no I/O."""
        return self._rooms.tokens.authenticate(token)

    def authorize(self, actor: Actor, verb: Verb, object_: str) -> None:
        """Raise ForbiddenError, or NotFoundError where the actor may not even know of it.

        `object_` is KIND/ID, with `*` for a listing or a create: job, cluster, sandbox, node, pool, event, token,
        join-token, server. A dict look-up, no I/O.
        """
        kind, name = rules.split(object_)
        rules.check(actor, verb, kind, name, self._workspace_of(kind, name))

    async def create_token(self, actor: Actor, body: ApiTokenRequest) -> Json:
        """A new API token; ApiTokenBody with its text, shown once."""
        return await self._rooms.tokens.create(actor, body)

    async def tokens(self, actor: Actor) -> Listing:
        """ApiTokenBody each, without text."""
        return Listing(self._rooms.tokens.all())

    async def revoke_token(self, actor: Actor, token_id: str) -> None:
        """Forget an API token at once."""
        await self._rooms.tokens.revoke(actor, token_id)

    async def ensure_local_token(self, text: str) -> None:
        """Make the token of the embedded install's token file valid (admin, workspace `default`); idempotent."""
        await self._rooms.tokens.ensure_local(text)

    async def create_join_token(self, actor: Actor, body: JoinTokenRequest) -> Json:
        """JoinTokenBody with its text, shown once."""
        if body.node_id is not None:
            self._rooms.nodes.find(body.node_id)
        return await self._rooms.join_tokens.create(actor, body)

    async def join_tokens(self, actor: Actor) -> Listing:
        """JoinTokenBody each, without text; used up and expired ones are left out."""
        return Listing(self._rooms.join_tokens.all())

    async def revoke_join_token(self, actor: Actor, token_id: str) -> None:
        """Forget a join token at once."""
        await self._rooms.join_tokens.revoke(actor, token_id)

    # --- jobs ---

    async def submit_job(self, actor: Actor, body: SubmitJob) -> Json:
        """JobBody, once it is durable. Raises InvalidError, NotFoundError (exec without cluster), ConflictError."""
        return await self._rooms.jobs.submit(actor, body)

    async def job(self, actor: Actor, job_id: str) -> Json:
        """JobBody; raises NotFoundError."""
        return await self._rooms.jobs.job(actor, job_id)

    async def jobs(
        self, actor: Actor, *, cluster: str = "", state: str = "", limit: int = 100, after: str = ""
    ) -> Listing:
        """JobBody each, newest first."""
        return await self._rooms.jobs.page(actor, cluster=cluster, state=state, limit=limit, after=after)

    async def cancel_job(self, actor: Actor, job_id: str, *, cause: str = "") -> Json:
        """Ask for the end of a job; JobBody as it is now. Ended already: unchanged."""
        return await self._rooms.jobs.cancel(actor, job_id, cause)

    async def wait_job(self, actor: Actor, job_id: str, timeout_s: float) -> Json:
        """JobBody once the job has ended, or as it is when the time is over (look at `state`)."""
        return await self._rooms.jobs.wait(actor, job_id, timeout_s)

    async def attempt_place(self, actor: Actor, job_id: str, index: int) -> AttemptPlace:
        """Where the rank is now; raises NotFoundError for an unknown job or rank."""
        return await self._rooms.jobs.place(actor, job_id, index)

    async def wait_attempt_started(self, actor: Actor, job_id: str, index: int, timeout_s: float) -> AttemptPlace:
        """As attempt_place, once the rank has begun or its job has ended, or when the time is over."""
        return await self._rooms.jobs.wait_started(actor, job_id, index, timeout_s)

    # --- clusters ---

    async def clusters(self, actor: Actor, *, limit: int = 100, after: str = "") -> Listing:
        """ClusterBody each, by name."""
        return self._rooms.clusters.page(actor, _limited(limit), after)

    async def cluster(self, actor: Actor, name: str) -> Json:
        """ClusterBody; raises NotFoundError."""
        return self._rooms.clusters.show(actor, name)

    async def down(self, actor: Actor, name: str) -> Json:
        """Cancel the cluster's jobs and give its hold back once they have ended; ClusterBody (state `down`)."""
        return await self._rooms.clusters.down(actor, name)

    # --- nodes ---

    async def nodes(self, actor: Actor, *, limit: int = 100, after: str = "") -> Listing:
        """NodeBody each, by name."""
        return self._rooms.nodes.page(_limited(limit), after)

    async def node(self, actor: Actor, id_or_name: str) -> Json:
        """NodeBody; raises NotFoundError, ConflictError when two nodes have the name."""
        return self._rooms.nodes.body(self._rooms.nodes.find(id_or_name))

    async def remove_node(self, actor: Actor, id_or_name: str) -> None:
        """Refuse the node from now on, hang up, and end its work as node_lost."""
        await self._rooms.nodes.remove(actor, id_or_name)

    def session(self, node_id: str) -> NodeSession:
        """The node's live link; raises UnreachableError with how long it has been away, NotFoundError."""
        return self._rooms.nodes.session(node_id)

    def data_key(self, node_id: str) -> tuple[int, bytes]:
        """(key id, key) that signs the node's data-plane tokens now; raises UnreachableError when not linked."""
        return self._rooms.nodes.data_key(node_id)

    # --- sandboxes ---

    def create_sandboxes(self, actor: Actor, body: CreateSandboxesBody) -> AsyncIterator[list[Json]]:
        """Batches of SandboxItemBody dicts as the nodes tell them, then one batch with the SandboxesDone dict.

        The batch is whatever one node message brought: write it out in one piece. Raises before the first batch:
        InvalidError, NoCapacityError, PendingError (a retried key whose node is away). With a command an item comes
        twice (sandbox, then result) or once with both. Closing the iterator early ends nothing on the nodes.
        """
        return self._rooms.creates.create(actor, body)

    async def sandbox(self, actor: Actor, sandbox_id: str) -> Json:
        """SandboxBody; raises NotFoundError."""
        return self._rooms.sandboxes.show(actor, sandbox_id)

    async def sandboxes(
        self, actor: Actor, *, labels: dict[str, str] | None = None, state: str = "", limit: int = 100, after: str = ""
    ) -> Listing:
        """SandboxBody each, by id; ended ones only for state=`ended`."""
        return await self._rooms.sandboxes.page(actor, labels, state, limit, after)

    def sandbox_node(self, sandbox_id: str) -> str:
        """The node that has a sandbox; a dict look-up. Raises NotFoundError, ConflictError when it has ended."""
        return self._rooms.sandboxes.node_of(sandbox_id)

    async def remove_sandboxes(self, actor: Actor, body: RemoveSandboxesBody) -> Json:
        """End and remove; {"removed": [ids], "unreachable": [{"id", "node"}]} once the nodes have nothing left."""
        return await self._rooms.sandboxes.remove(actor, body)

    async def extend_sandbox(self, actor: Actor, sandbox_id: str, ttl_s: float) -> Json:
        """SandboxBody with its new end."""
        return await self._rooms.sandboxes.extend(actor, sandbox_id, ttl_s)

    async def pools(self, actor: Actor) -> list[Json]:
        """[{template, parked, drain_after_s}]."""
        return self._rooms.pools.bodies()

    async def set_pools(self, actor: Actor, pools: list[Json]) -> list[Json]:
        """Replace the parked pools that every node is told to keep (templates shaped like TemplateBody)."""
        return await self._rooms.pools.replace(actor, pools, self._rooms.links.synced_nodes())

    # --- the whole ---

    async def info(self) -> Json:
        """ServerInfo."""
        return report.info(self._config, self._started_unix_s)

    async def status(self, actor: Actor) -> Json:
        """StatusBody."""
        return report.status(self._rooms, actor, await self.info())

    async def events(self, actor: Actor, *, after: int = 0, limit: int = 100, object_: str = "") -> Listing:
        """EventBody each, oldest first, from id `after` on (exclusive)."""
        workspace = None if actor.is_admin else actor.workspace
        items = await self._rooms.events.page(after, _limited(limit), workspace, object_)
        return Listing(items, str(items[-1]["id"]) if len(items) == _limited(limit) else "")

    def follow_events(self, actor: Actor, *, after: int = -1) -> AsyncIterator[list[Json]]:
        """EventBody dicts in batches, without end; after=-1: only new ones."""
        return self._rooms.events.follow(after, None if actor.is_admin else actor.workspace)

    def statistics(self) -> dict[str, float]:
        """Numbers for /metrics, by metric name without prefix."""
        return report.statistics(self._rooms)

    # --- the node side: called by the link server and the enrolment handlers ---

    async def enrol_node(self, enrolment: Enrolment) -> EnrolledNode:
        """Use a join token once, durably, and mint (or re-admit) the node. Raises ForbiddenError saying why."""
        return await self._rooms.enrolments.enrol(enrolment)

    async def certificate_issued(self, certificate: Certificate) -> None:
        """Record what was signed at enrolment or renewal."""
        await self._rooms.enrolments.certificate_issued(certificate)

    def check_certificate(self, node_id: str, serial: str) -> int:
        """The node's generation, for renewals; raises ForbiddenError for a removed node or revoked certificate."""
        return self._rooms.enrolments.check(node_id, serial)

    def node_connected(self, session: NodeSession, hello: Hello) -> Welcome:
        """The answer to send; the session is live from here. An older session of the node is closed.

        Raises ForbiddenError (removed, wrong id), ConflictError (an older incarnation than the one linked),
        InvalidError (no common protocol version).
        """
        return self._rooms.nodes.connected(session, hello, self._greeting)

    def node_message(self, session: NodeSession, message: Message) -> None:
        """Take any message of an agent but CertificateRequest and Stream*, which are the link server's own."""
        if not self._rooms.links.is_current(session):
            return  # a newer link has taken its place: what still comes on this one is old
        self._rooms.nodes.heard(session.node_id)
        try:
            self._dispatch(session, message)
        except Exception:
            # One word that we cannot take must not cost the node its link, and with it all its other work.
            logger.exception("%s of node %s could not be taken", type(message).__name__, session.node_id)

    def node_disconnected(self, session: NodeSession, reason: str) -> None:
        """The link is gone (once for each session that node_connected took)."""
        self._rooms.nodes.disconnected(session, reason)

    def _dispatch(self, session: NodeSession, message: Message) -> None:
        rooms = self._rooms
        match message:
            case Heartbeat():
                rooms.nodes.heartbeat(session, message)
            case SandboxItems():
                rooms.creates.items(message)
            case SandboxUpdate():
                rooms.sandboxes.updated(session.node_id, message.sandboxes)
            case AttemptUpdate():
                rooms.jobs.reported(session.node_id, message.status)
            case Reply():
                if not rooms.links.answered(session, message):
                    rooms.creates.reply(message)
            case Inventory():
                rooms.nodes.inventory(session.node_id, message)
                rooms.jobs.settle()
            case Snapshot():
                rooms.nodes.snapshot(session, message)
            case _:
                logger.warning("node %s sent a %s, which is not for us", session.node_id, type(message).__name__)

    def _workspace_of(self, kind: Kind, name: str) -> str | None:
        """The workspace of one object; None where it has none, or where only the store knows it."""
        match kind:
            case Kind.JOB:
                return self._rooms.jobs.workspace_of(name)
            case Kind.SANDBOX:
                return self._rooms.sandboxes.workspace_of(name)
            case _:
                return None


def _limited(limit: int) -> int:
    return max(1, min(limit, PAGE_MAX))
