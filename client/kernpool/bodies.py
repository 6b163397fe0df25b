"""Bodies of the HTTP API (`/api/v1`): what the coordinator takes and gives, as pydantic models.

Both sides import this file: the coordinator validates with it and makes its OpenAPI document from it. The SDK and the
CLI read answers as plain JSON (pydantic costs them 100 ms of start) and use these models only where a person asks.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?$")]
IdempotencyKey = Annotated[str, Field(min_length=1, max_length=200)]
Labels = Annotated[dict[str, str], Field(max_length=64)]


class Body(BaseModel):
    """Base of all bodies: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid")


class Problem(Body):
    """Every error answer: what happened, to what, what to do next."""

    code: str
    """invalid, unauthenticated, forbidden, not_found, conflict, no_capacity, unreachable, too_large, internal, ..."""
    message: str
    hint: str = ""
    """The next command to type, or empty."""
    details: list[dict[str, Any]] = []
    """For `invalid`: {line, column, key, message} each."""


class Page(Body):
    """A page of a listing; `next` is the cursor of the following page or empty."""

    items: list[Any]
    next: str = ""


class ServerInfo(Body):
    """GET /info."""

    version: str
    cluster_id: str
    started_unix_s: float
    ca_pin: str
    """sha256:HEX of the CA's SubjectPublicKeyInfo."""
    node_url: str
    """https://HOST:PORT where agents enrol and link."""


class ResourcesBody(Body):
    """Amounts of a node's resources."""

    cpus: float = 0
    memory_mib: int = 0
    disk_mib: int = 0
    gpus: int = 0


class NodeBody(Body):
    """One node, as GET /nodes and /nodes/{id} show it."""

    id: str
    name: str
    pool: str
    state: Literal["ready", "suspect", "unreachable", "removed"]
    """ready: linked and in time. suspect: no new work, nothing killed. unreachable: the policy clock runs."""
    total: ResourcesBody
    free: ResourcesBody
    gpus: list[dict[str, Any]] = []
    addresses: list[str] = []
    isolation: list[str] = []
    isolation_problems: list[str] = []
    facts: dict[str, Any] = {}
    labels: Labels = {}
    agent_version: str = ""
    incarnation: int = 0
    jobs_running: int = 0
    sandboxes_running: int = 0
    sandboxes_parked: int = 0
    last_seen_s: float | None = None
    """Seconds since the last sign of life; null before the first."""
    joined_unix_s: float = 0
    certificate_expires_unix_s: float = 0


class ClusterBody(Body):
    """A named hold on capacity with its own queue."""

    name: str
    workspace: str
    owner: str
    state: Literal["up", "pending", "down"]
    nodes: list[str]
    num_nodes: int
    resources: ResourcesBody
    jobs_running: int = 0
    jobs_waiting: int = 0
    created_unix_s: float = 0


class AttemptBody(Body):
    """One rank's attempt of a job."""

    index: int
    fence: int
    node: str
    state: str
    reason: str | None = None
    exit_code: int | None = None
    detail: str = ""
    started_unix_s: float | None = None
    ended_unix_s: float | None = None


JobState = Literal["pending", "starting", "setting_up", "running", "cancelling", "succeeded", "failed", "cancelled"]


class JobBody(Body):
    """One job."""

    id: str
    """`j-` and a growing number per coordinator store, e.g. `j-17`."""
    name: str
    cluster: str | None
    state: JobState
    reason: str | None = None
    """End reason, once over."""
    exit_code: int | None = None
    detail: str = ""
    """Why it waits, or how it ended, in one sentence."""
    num_nodes: int = 1
    attempts: list[AttemptBody] = []
    restarts: int = 0
    workspace: str = "default"
    owner: str = ""
    resources: ResourcesBody = ResourcesBody()
    created_unix_s: float = 0
    started_unix_s: float | None = None
    ended_unix_s: float | None = None


class SubmitJob(Body):
    """POST /jobs: `launch` (makes the cluster when it is missing) or `exec` (the cluster must be there)."""

    task: dict[str, Any]
    """A task document (kernpool.spec.Task) as JSON; checked again by the coordinator."""
    cluster: Name | None = None
    """None: no hold is kept; the job takes what it needs and gives it back."""
    must_exist: bool = False
    """True for `exec`: 404 when the cluster is not there."""
    idempotency_key: IdempotencyKey | None = None


class LimitsBody(Body):
    """What one sandbox may use at most; null: the node's default."""

    cpus: Annotated[float, Field(gt=0, le=1024)] | None = None
    memory_mib: Annotated[int, Field(ge=4)] | None = None
    disk_mib: Annotated[int, Field(ge=1)] | None = None
    pids: Annotated[int, Field(ge=2)] | None = None


class TemplateBody(Body):
    """What a sandbox is made from; sandboxes of equal templates share a parked pool."""

    image: str = "host"
    limits: LimitsBody = LimitsBody()
    user: str = "root"
    cwd: str = "/"
    env: dict[str, str] = {}
    network: Literal["none"] = "none"
    allow_setuid: bool = False


class CommandBody(Body):
    """One command."""

    argv: Annotated[list[str], Field(min_length=1, max_length=4096)]
    env: dict[str, str] = {}
    cwd: str = ""
    user: str = ""
    timeout_s: Annotated[float, Field(ge=0)] = 0
    stdin_b64: str = ""
    output_bytes_max: Annotated[int, Field(ge=0, le=8 << 20)] = 1 << 20


class CommandResultBody(Body):
    """What came of a command."""

    reason: str
    exit_code: int
    stdout_b64: str = ""
    stderr_b64: str = ""
    stdout_bytes_dropped: int = 0
    stderr_bytes_dropped: int = 0
    detail: str = ""
    first_output_ms: float | None = None


class SandboxBody(Body):
    """One sandbox."""

    id: str
    node: str
    state: Literal["starting", "running", "ended"]
    reason: str | None = None
    detail: str = ""
    template: TemplateBody = TemplateBody()
    parked: bool = False
    labels: Labels = {}
    workspace: str = "default"
    owner: str = ""
    created_unix_s: float = 0
    expires_unix_s: float = 0


class CreateSandboxesBody(Body):
    """POST /sandboxes: the answer is NDJSON, one SandboxItemBody a line as they come, then one SandboxesDone."""

    count: Annotated[int, Field(ge=1, le=10_000)] = 1
    template: TemplateBody = TemplateBody()
    command: CommandBody | None = None
    remove_after: bool = False
    env: dict[str, str] = {}
    ttl_s: Annotated[float, Field(gt=0, le=30 * 86400)] = 600
    idle_s: Annotated[float, Field(ge=0)] = 0
    labels: Labels = {}
    node: str | None = None
    idempotency_key: IdempotencyKey | None = None


class SandboxItemBody(Body):
    """One line of the bulk answer. Exactly one of `error` or `sandbox`/`result` tells what happened."""

    id: str
    sandbox: SandboxBody | None = None
    result: CommandResultBody | None = None
    error: Problem | None = None
    ready_ms: float | None = None


class SandboxesDone(Body):
    """Last line of the bulk answer; without it the answer was cut and the items not seen are unknown."""

    done: Literal[True] = True
    created: int
    failed: int


class RemoveSandboxesBody(Body):
    """POST /sandboxes/remove: by ids, by labels (all must match), or all of the caller's workspace."""

    ids: list[str] = []
    labels: Labels = {}
    all: bool = False


class ExtendSandboxBody(Body):
    """POST /sandboxes/{id}/extend."""

    ttl_s: Annotated[float, Field(gt=0, le=30 * 86400)]


class AccessBody(Body):
    """POST /sandboxes/{id}/access and /jobs/{id}/access: a way straight to the node, if it can be reached."""

    urls: list[str]
    """Base URLs of the node's own listener, best first; may be empty."""
    server_name: str
    """DNS name in the node's certificate: set SNI and check against it (DECISIONS 18)."""
    ca_pem: str
    token: str
    expires_in_s: float


class JoinTokenRequest(Body):
    """POST /join-tokens."""

    uses: Annotated[int, Field(ge=1, le=100_000)] = 1
    expires_s: Annotated[float, Field(gt=0, le=30 * 86400)] = 900
    pool: Name = "default"
    node_id: str | None = None
    """Re-enrol this very node; its old certificate is revoked."""


class JoinTokenBody(Body):
    """The token text is shown once."""

    id: str
    token: str | None = None
    """`kpj1.<ca pin>.<id>.<secret>`, or null in listings."""
    pool: str
    uses_left: int
    expires_unix_s: float


class ApiTokenRequest(Body):
    """POST /tokens."""

    name: Name
    role: Literal["admin", "user", "viewer"] = "user"
    workspace: Name = "default"


class ApiTokenBody(Body):
    """The token text is shown once."""

    id: str
    name: str
    role: str
    workspace: str
    token: str | None = None
    created_unix_s: float = 0


class EventBody(Body):
    """One change of anything, with who and why."""

    id: int
    at_unix_s: float
    actor: str
    verb: str
    object: str
    """e.g. `job/j-17`, `node/n-ab12`, `sandbox/sb-...`."""
    workspace: str
    cause: str = ""
    data: dict[str, Any] = {}


class StatusBody(Body):
    """GET /status: what `kernpool status` shows."""

    server: ServerInfo
    nodes: list[NodeBody]
    clusters: list[ClusterBody]
    jobs: dict[str, int]
    """Number of jobs by state."""
    sandboxes: dict[str, int]
    """running, parked."""


class HealthBody(Body):
    """GET /health."""

    status: Literal["ok"]


class PoolBody(Body):
    """How many sandboxes of one template every node keeps parked."""

    template: TemplateBody = TemplateBody()
    parked: Annotated[int, Field(ge=0, le=10_000)]
    drain_after_s: Annotated[float, Field(ge=0)] = 600
    """Unused for so long, the pool is drained; 0: never."""


class PoolsBody(Body):
    """GET and PUT /pools: the whole set."""

    pools: Annotated[list[PoolBody], Field(max_length=256)]


class UnreachableSandbox(Body):
    """A sandbox that could not be removed because its node is away."""

    id: str
    node: str


class RemovedBody(Body):
    """POST /sandboxes/remove and DELETE /sandboxes/{id}: nothing is left of `removed` on their nodes."""

    removed: list[str]
    unreachable: list[UnreachableSandbox] = []
