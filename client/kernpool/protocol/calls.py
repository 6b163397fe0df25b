"""Every call of the API: what is sent, and how its answer is read; both SDKs run these and build no request."""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, final
from urllib.parse import quote, urlencode

from kernpool import results
from kernpool.errors import ApiError, InvalidError, ProtocolError, api_error
from kernpool.options import Argv, CommandOptions, CreateOptions, command_document, create_document
from kernpool.protocol import fields as read
from kernpool.protocol.lines import read_json

T = TypeVar("T")

ANSWER_BYTES_MAX: Final = 64 << 20
CALL_TIMEOUT_S: Final = 65.0
"""Above the coordinator's own deadline of a request, so that its explanation arrives."""
WAIT_S_MAX: Final = 50.0
"""One long poll; the coordinator allows 55."""
PAGE_ITEMS: Final = 500
"""Of listings that may be long; the coordinator gives 1000 at most."""


@final
@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request and how to read its answer."""

    method: str
    path: str
    """Below /api/v1, or below /v1 of a node; quoted, with its query."""
    read: Callable[[Any], T]
    """Of the JSON document; None where there was no body."""
    body: bytes | None = None
    repeatable: bool = True
    timeout_s: float = CALL_TIMEOUT_S

    def answer(self, status: int, body: bytes) -> T:
        """Read an answer. Raises ApiError or ProtocolError."""
        if status >= 300:
            raise refusal(status, body, f"{self.method} {self.path.split('?')[0]}")
        return self.read(read_json(body) if body else None)


def refusal(status: int, body: bytes, what: str) -> ApiError:
    """Read an error answer; one that is no Problem (a proxy's page, say) is told with its start."""
    try:
        problem = results.read_problem(read.answer_object(read_json(body)), status)
    except ProtocolError:
        start = body[:200].decode("utf-8", "replace").strip()
        return api_error("internal", f"{what} was answered with status {status}: {start or '(nothing)'}", status=status)
    if status == 401:
        problem.hint = problem.hint or "The token is not good for this coordinator: look at KERNPOOL_API_TOKEN."
    return problem


def new_key() -> str:
    """Make an idempotency key."""
    return os.urandom(16).hex()


def _body(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _query(**values: Any) -> str:
    given = {name: value for name, value in values.items() if value is not None and value != ""}
    return f"?{urlencode(given, doseq=True)}" if given else ""


def _id(text: str) -> str:
    if not text or text in (".", ".."):
        raise InvalidError(f"{text!r} is not a name.", code="invalid")
    return quote(text, safe="", errors="surrogateescape")


def _object(reader: Callable[[Any], T]) -> Callable[[Any], T]:
    return lambda document: reader(read.answer_object(document))


def _nothing(_: Any) -> None:
    return None


@final
@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A page of a listing and the cursor of the next; empty: it was the last."""

    items: tuple[T, ...]
    next: str


def _page(reader: Callable[[Any], T]) -> Callable[[Any], Page[T]]:
    def read_page(document: Any) -> Page[T]:
        data = read.answer_object(document)
        return Page(read.records(data, "items", reader), read.text(data, "next"))

    return read_page


# --- coordinator ---


def health() -> Call[None]:
    """Ask for a sign of life."""
    return Call("GET", "/health", _nothing, timeout_s=5.0)


def info() -> Call[results.ServerInfo]:
    """Ask what the coordinator is."""
    return Call("GET", "/info", _object(results.ServerInfo.read))


def status() -> Call[results.Status]:
    """Ask for everything at a glance."""
    return Call("GET", "/status", _object(results.Status.read))


def nodes(after: str = "") -> Call[Page[results.NodeInfo]]:
    """List nodes."""
    return Call("GET", f"/nodes{_query(limit=PAGE_ITEMS, after=after)}", _page(results.NodeInfo.read))


def node(name: str) -> Call[results.NodeInfo]:
    """Show one node, by id or name."""
    return Call("GET", f"/nodes/{_id(name)}", _object(results.NodeInfo.read))


def remove_node(name: str) -> Call[None]:
    """Put a node out of the mesh."""
    return Call("DELETE", f"/nodes/{_id(name)}", _nothing)


def clusters(after: str = "") -> Call[Page[results.ClusterInfo]]:
    """List clusters."""
    return Call("GET", f"/clusters{_query(after=after)}", _page(results.ClusterInfo.read))


def cluster(name: str) -> Call[results.ClusterInfo]:
    """Show one cluster."""
    return Call("GET", f"/clusters/{_id(name)}", _object(results.ClusterInfo.read))


def down(name: str) -> Call[None]:
    """Cancel a cluster's jobs and give its hold back."""
    return Call("DELETE", f"/clusters/{_id(name)}", _nothing)


# --- jobs ---


def submit(
    task: Mapping[str, Any], cluster: str | None, *, must_exist: bool, key: str | None = None
) -> Call[results.JobInfo]:
    """Submit a job; repeated with the same key it gives the same job."""
    document = {"task": task, "cluster": cluster, "must_exist": must_exist, "idempotency_key": key or new_key()}
    return Call("POST", "/jobs", _object(results.JobInfo.read), _body(document))


def jobs(
    cluster: str | None = None, state: Sequence[str] = (), limit: int | None = None, after: str = ""
) -> Call[Page[results.JobInfo]]:
    """List jobs, newest first."""
    query = _query(cluster=cluster, state=list(state) or None, limit=limit, after=after)
    return Call("GET", f"/jobs{query}", _page(results.JobInfo.read))


def job(job_id: str) -> Call[results.JobInfo]:
    """Show one job."""
    return Call("GET", f"/jobs/{_id(job_id)}", _object(results.JobInfo.read))


def cancel_job(job_id: str) -> Call[results.JobInfo]:
    """Ask for a job's end."""
    return Call("POST", f"/jobs/{_id(job_id)}/cancel", _object(results.JobInfo.read))


def wait_job(job_id: str, wait_s: float) -> Call[results.JobInfo]:
    """Wait up to `wait_s` for a job's end."""
    path = f"/jobs/{_id(job_id)}/wait{_query(timeout_s=f'{max(wait_s, 0):.3f}')}"
    return Call("GET", path, _object(results.JobInfo.read), timeout_s=wait_s + 15.0)


def job_logs_path(
    job_id: str, index: int, *, offset: int, follow: bool, tail: int | None, fence: int, direct: bool
) -> str:
    """Give the path of a job's log, at the coordinator or at the node itself; `fence`: only a later attempt's."""
    if direct:
        query = _query(offset=offset or None, follow=int(follow), tail=tail)
        return f"/jobs/{_id(job_id)}/{index}/logs{query}"
    query = _query(index=index or None, offset=offset or None, follow=int(follow), tail=tail, fence=fence or None)
    return f"/jobs/{_id(job_id)}/logs{query}"


# --- sandboxes ---


def create_sandboxes(count: int, options: CreateOptions, key: str) -> Call[None]:
    """Make sandboxes; the answer is NDJSON for BulkReader."""
    try:
        document = create_document(count, options, key)
    except (ValueError, TypeError) as error:
        raise InvalidError(str(error), code="invalid") from error
    return Call("POST", "/sandboxes", _nothing, _body(document))


def sandboxes(
    labels: Mapping[str, str], state: str | None = None, limit: int = PAGE_ITEMS, after: str = ""
) -> Call[Page[results.SandboxInfo]]:
    """List sandboxes."""
    pairs = [f"{name}={value}" for name, value in labels.items()]
    query = _query(label=pairs or None, state=state, limit=limit, after=after)
    return Call("GET", f"/sandboxes{query}", _page(results.SandboxInfo.read))


def sandbox(sandbox_id: str) -> Call[results.SandboxInfo]:
    """Show one sandbox."""
    return Call("GET", f"/sandboxes/{_id(sandbox_id)}", _object(results.SandboxInfo.read))


def extend_sandbox(sandbox_id: str, ttl_s: float) -> Call[results.SandboxInfo]:
    """Count a sandbox's time to live anew from now."""
    body = _body({"ttl_s": ttl_s})
    return Call("POST", f"/sandboxes/{_id(sandbox_id)}/extend", _object(results.SandboxInfo.read), body)


def remove_sandboxes(
    ids: Iterable[str], labels: Mapping[str, str], *, everything: bool = False
) -> Call[results.Removed]:
    """Remove sandboxes by ids, by labels, or all of the workspace."""
    body = _body({"ids": list(ids), "labels": dict(labels), "all": everything})
    return Call("POST", "/sandboxes/remove", _object(results.Removed.read), body)


def pools() -> Call[tuple[results.Pool, ...]]:
    """List the parked pools."""
    return Call("GET", "/pools", _read_pools)


def set_pools(wanted: Iterable[results.Pool]) -> Call[tuple[results.Pool, ...]]:
    """Set all parked pools; those not named are drained."""
    return Call("PUT", "/pools", _read_pools, _body({"pools": [pool.document() for pool in wanted]}))


def _read_pools(document: Any) -> tuple[results.Pool, ...]:
    return read.records(read.answer_object(document), "pools", results.Pool.read) if document is not None else ()


def access(object_: str) -> Call[results.Access]:
    """Ask for a way straight to the node of `sandbox/ID` or of `job/ID/RANK`."""
    kind, _, rest = object_.partition("/")
    name, _, index = rest.partition("/")
    path = f"/sandboxes/{_id(name)}/access" if kind == "sandbox" else f"/jobs/{_id(name)}/access{_query(index=index)}"
    return Call("POST", path, _object(results.Access.read), timeout_s=10.0)


# --- in a sandbox: the same paths at the coordinator and at the node ---


def exec_path(sandbox_id: str) -> str:
    """Give the path of running a command, by POST or as a WebSocket."""
    return f"/sandboxes/{_id(sandbox_id)}/exec"


def exec_body(command: Argv, options: CommandOptions) -> bytes:
    """Give the body that starts a command."""
    return _body(command_document(command, options))


def port_path(sandbox_id: str, port: int) -> str:
    """Give the path of a connection to a port inside."""
    return f"/sandboxes/{_id(sandbox_id)}/ports/{port}"


def files_path(sandbox_id: str, operation: str = "", **query: str | int | None) -> str:
    """Give the path of a file operation; paths in the query keep every byte."""
    given = {name: value for name, value in query.items() if value is not None}
    suffix = f"/{operation}" if operation else ""
    return f"/sandboxes/{_id(sandbox_id)}/files{suffix}?{urlencode(given, errors='surrogateescape', quote_via=quote)}"


def list_files(sandbox_id: str, path: str) -> Call[tuple[results.FileInfo, ...]]:
    """List a directory."""

    def entries(document: Any) -> tuple[results.FileInfo, ...]:
        return read.records(read.answer_object(document), "entries", results.FileInfo.read)

    return Call("GET", files_path(sandbox_id, "list", path=path), entries)


def stat_file(sandbox_id: str, path: str) -> Call[results.FileInfo]:
    """Describe one file."""
    return Call("GET", files_path(sandbox_id, "stat", path=path), _object(results.FileInfo.read))


def make_directory(sandbox_id: str, path: str) -> Call[None]:
    """Make a directory and its parents."""
    return Call("POST", files_path(sandbox_id, "mkdir", path=path), _nothing)


def move_file(sandbox_id: str, path: str, to: str) -> Call[None]:
    """Rename a file; not repeatable: a second time the source is gone."""
    return Call("POST", files_path(sandbox_id, "move", path=path, to=to), _nothing, repeatable=False)


def remove_file(sandbox_id: str, path: str) -> Call[None]:
    """Remove a file or a whole directory; not repeatable: a second time it is not there."""
    return Call("DELETE", files_path(sandbox_id, path=path), _nothing, repeatable=False)


# --- tokens and events ---


def create_join_token(uses: int, expires_s: float, pool: str, node_id: str | None) -> Call[results.JoinToken]:
    """Make a token with which machines join."""
    body = _body({"uses": uses, "expires_s": expires_s, "pool": pool, "node_id": node_id})
    return Call("POST", "/join-tokens", _object(results.JoinToken.read), body, repeatable=False)


def join_tokens(after: str = "") -> Call[Page[results.JoinToken]]:
    """List join tokens."""
    return Call("GET", f"/join-tokens{_query(after=after)}", _page(results.JoinToken.read))


def remove_join_token(token_id: str) -> Call[None]:
    """Make a join token worthless."""
    return Call("DELETE", f"/join-tokens/{_id(token_id)}", _nothing)


def create_token(name: str, role: str, workspace: str) -> Call[results.ApiToken]:
    """Make a token of the API."""
    body = _body({"name": name, "role": role, "workspace": workspace})
    return Call("POST", "/tokens", _object(results.ApiToken.read), body, repeatable=False)


def tokens(after: str = "") -> Call[Page[results.ApiToken]]:
    """List the API's tokens."""
    return Call("GET", f"/tokens{_query(after=after)}", _page(results.ApiToken.read))


def remove_token(token_id: str) -> Call[None]:
    """Make a token of the API worthless."""
    return Call("DELETE", f"/tokens/{_id(token_id)}", _nothing)


def events(after: int | None = None, limit: int = PAGE_ITEMS) -> Call[Page[results.Event]]:
    """List events, oldest first."""
    return Call("GET", f"/events{_query(after=after, limit=limit)}", _page(results.Event.read))


def follow_events_path(after: int | None) -> str:
    """Give the path of the events as they happen, as NDJSON."""
    return f"/events{_query(after=after, follow=1)}"
