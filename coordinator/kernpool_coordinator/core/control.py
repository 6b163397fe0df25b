"""ControlPlane: everything the HTTP API and the link server may ask of the core, on one page.

Methods raise `kernpool_coordinator.errors` and nothing else. Nobody is checked here for permission but in `authorize`,
which every handler calls once. Dicts are shaped like the body of the same name in `kernpool.bodies` and JSON-ready.
Everything runs on one event loop; nothing here blocks it.
"""

from collections.abc import AsyncIterator
from typing import Any, Self, final

from kernpool.bodies import (
    ApiTokenRequest,
    CreateSandboxesBody,
    JoinTokenRequest,
    RemoveSandboxesBody,
    SubmitJob,
)
from kernpool_coordinator.core.config import CoreConfig
from kernpool_coordinator.core.session import NodeSession
from kernpool_coordinator.core.shapes import AttemptPlace, Certificate, EnrolledNode, Enrolment, Listing
from kernpool_coordinator.tokens.actor import Actor, Verb
from kernpool_mesh.messages import Hello, Message, Welcome

Json = dict[str, Any]


@final
class ControlPlane:
    """The core as its callers see it."""

    @classmethod
    async def open(cls, config: CoreConfig) -> Self:
        """Open the store (migrating it when behind), load every truth, start the ticker."""
        raise NotImplementedError

    async def close(self) -> None:
        """Stop the ticker, commit what is queued, close the store. Jobs and sandboxes go on."""
        raise NotImplementedError

    # --- who ---

    def authenticate(self, token: str) -> Actor:
        """The actor of an API token (`kpt_...`); raises UnauthenticatedError. A dict look-up, no I/O."""
        raise NotImplementedError

    def authorize(self, actor: Actor, verb: Verb, object_: str) -> None:
        """Raise ForbiddenError, or NotFoundError where the actor may not even know of it.

        `object_` is KIND/ID, with `*` for a listing or a create: job, cluster, sandbox, node, pool, event, token,
        join-token, server. A dict look-up, no I/O.
        """
        raise NotImplementedError

    async def create_token(self, actor: Actor, body: ApiTokenRequest) -> Json:
        """A new API token; ApiTokenBody with its text, shown once."""
        raise NotImplementedError

    async def tokens(self, actor: Actor) -> Listing:
        """ApiTokenBody each, without text."""
        raise NotImplementedError

    async def revoke_token(self, actor: Actor, token_id: str) -> None:
        """Forget an API token at once."""
        raise NotImplementedError

    async def ensure_local_token(self, text: str) -> None:
        """Make the token of the embedded install's token file valid (admin, workspace `default`); idempotent."""
        raise NotImplementedError

    async def create_join_token(self, actor: Actor, body: JoinTokenRequest) -> Json:
        """JoinTokenBody with its text, shown once."""
        raise NotImplementedError

    async def join_tokens(self, actor: Actor) -> Listing:
        """JoinTokenBody each, without text; used up and expired ones are left out."""
        raise NotImplementedError

    async def revoke_join_token(self, actor: Actor, token_id: str) -> None:
        """Forget a join token at once."""
        raise NotImplementedError

    # --- jobs ---

    async def submit_job(self, actor: Actor, body: SubmitJob) -> Json:
        """JobBody, once it is durable. Raises InvalidError, NotFoundError (exec without cluster), ConflictError."""
        raise NotImplementedError

    async def job(self, actor: Actor, job_id: str) -> Json:
        """JobBody; raises NotFoundError."""
        raise NotImplementedError

    async def jobs(
        self, actor: Actor, *, cluster: str = "", state: str = "", limit: int = 100, after: str = ""
    ) -> Listing:
        """JobBody each, newest first."""
        raise NotImplementedError

    async def cancel_job(self, actor: Actor, job_id: str, *, cause: str = "") -> Json:
        """Ask for the end of a job; JobBody as it is now. Ended already: unchanged."""
        raise NotImplementedError

    async def wait_job(self, actor: Actor, job_id: str, timeout_s: float) -> Json:
        """JobBody once the job has ended, or as it is when the time is over (look at `state`)."""
        raise NotImplementedError

    async def attempt_place(self, actor: Actor, job_id: str, index: int) -> AttemptPlace:
        """Where the rank is now; raises NotFoundError for an unknown job or rank."""
        raise NotImplementedError

    async def wait_attempt_started(self, actor: Actor, job_id: str, index: int, timeout_s: float) -> AttemptPlace:
        """As attempt_place, once the rank has begun or its job has ended, or when the time is over."""
        raise NotImplementedError

    # --- clusters ---

    async def clusters(self, actor: Actor, *, limit: int = 100, after: str = "") -> Listing:
        """ClusterBody each, by name."""
        raise NotImplementedError

    async def cluster(self, actor: Actor, name: str) -> Json:
        """ClusterBody; raises NotFoundError."""
        raise NotImplementedError

    async def down(self, actor: Actor, name: str) -> Json:
        """Cancel the cluster's jobs and give its hold back once they have ended; ClusterBody (state `down`)."""
        raise NotImplementedError

    # --- nodes ---

    async def nodes(self, actor: Actor, *, limit: int = 100, after: str = "") -> Listing:
        """NodeBody each, by name."""
        raise NotImplementedError

    async def node(self, actor: Actor, id_or_name: str) -> Json:
        """NodeBody; raises NotFoundError, ConflictError when two nodes have the name."""
        raise NotImplementedError

    async def remove_node(self, actor: Actor, id_or_name: str) -> None:
        """Refuse the node from now on, hang up, and end its work as node_lost."""
        raise NotImplementedError

    def session(self, node_id: str) -> NodeSession:
        """The node's live link; raises UnreachableError with how long it has been away, NotFoundError."""
        raise NotImplementedError

    def data_key(self, node_id: str) -> tuple[int, bytes]:
        """(key id, key) that signs the node's data-plane tokens now; raises UnreachableError when not linked."""
        raise NotImplementedError

    # --- sandboxes ---

    def create_sandboxes(self, actor: Actor, body: CreateSandboxesBody) -> AsyncIterator[list[Json]]:
        """Batches of SandboxItemBody dicts as the nodes tell them, then one batch with the SandboxesDone dict.

        The batch is whatever one node message brought: write it out in one piece. Raises before the first batch:
        InvalidError, NoCapacityError, PendingError (a retried key whose node is away). With a command an item comes
        twice (sandbox, then result) or once with both. Closing the iterator early ends nothing on the nodes.
        """
        raise NotImplementedError

    async def sandbox(self, actor: Actor, sandbox_id: str) -> Json:
        """SandboxBody; raises NotFoundError."""
        raise NotImplementedError

    async def sandboxes(
        self, actor: Actor, *, labels: dict[str, str] | None = None, state: str = "", limit: int = 100, after: str = ""
    ) -> Listing:
        """SandboxBody each, by id; ended ones only for state=`ended`."""
        raise NotImplementedError

    def sandbox_node(self, sandbox_id: str) -> str:
        """The node that has a sandbox; a dict look-up. Raises NotFoundError, ConflictError when it has ended."""
        raise NotImplementedError

    async def remove_sandboxes(self, actor: Actor, body: RemoveSandboxesBody) -> Json:
        """End and remove; {"removed": [ids], "unreachable": [{"id", "node"}]} once the nodes have nothing left."""
        raise NotImplementedError

    async def extend_sandbox(self, actor: Actor, sandbox_id: str, ttl_s: float) -> Json:
        """SandboxBody with its new end."""
        raise NotImplementedError

    async def pools(self, actor: Actor) -> list[Json]:
        """[{template, parked, drain_after_s}]."""
        raise NotImplementedError

    async def set_pools(self, actor: Actor, pools: list[Json]) -> list[Json]:
        """Replace the parked pools that every node is told to keep (templates shaped like TemplateBody)."""
        raise NotImplementedError

    # --- the whole ---

    async def info(self) -> Json:
        """ServerInfo."""
        raise NotImplementedError

    async def status(self, actor: Actor) -> Json:
        """StatusBody."""
        raise NotImplementedError

    async def events(self, actor: Actor, *, after: int = 0, limit: int = 100, object_: str = "") -> Listing:
        """EventBody each, oldest first, from id `after` on (exclusive)."""
        raise NotImplementedError

    def follow_events(self, actor: Actor, *, after: int = -1) -> AsyncIterator[list[Json]]:
        """EventBody dicts in batches, without end; after=-1: only new ones."""
        raise NotImplementedError

    def statistics(self) -> dict[str, float]:
        """Numbers for /metrics, by metric name without prefix."""
        raise NotImplementedError

    # --- the node side: called by the link server and the enrolment handlers ---

    async def enrol_node(self, enrolment: Enrolment) -> EnrolledNode:
        """Use a join token once, durably, and mint (or re-admit) the node. Raises ForbiddenError saying why."""
        raise NotImplementedError

    async def certificate_issued(self, certificate: Certificate) -> None:
        """Record what was signed at enrolment or renewal."""
        raise NotImplementedError

    def check_certificate(self, node_id: str, serial: str) -> int:
        """The node's generation, for renewals; raises ForbiddenError for a removed node or revoked certificate."""
        raise NotImplementedError

    def node_connected(self, session: NodeSession, hello: Hello) -> Welcome:
        """The answer to send; the session is live from here. An older session of the node is closed.

        Raises ForbiddenError (removed, wrong id), ConflictError (an older incarnation than the one linked),
        InvalidError (no common protocol version).
        """
        raise NotImplementedError

    def node_message(self, session: NodeSession, message: Message) -> None:
        """Take any message of an agent but CertificateRequest and Stream*, which are the link server's own."""
        raise NotImplementedError

    def node_disconnected(self, session: NodeSession, reason: str) -> None:
        """The link is gone (once for each session that node_connected took)."""
        raise NotImplementedError
