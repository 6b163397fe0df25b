"""Who may do what: the grant a request comes with, and the one check that every request passes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, final

from aiohttp import web

from kernpool_agent.dataplane.problems import forbidden, unauthenticated
from kernpool_mesh import datatoken
from kernpool_mesh.errors import DataTokenError
from kernpool_mesh.transport import stream_of

_BEARER: Final = "Bearer "


class Verb(StrEnum):
    """What a grant may allow on its object."""

    EXEC = "exec"
    """Run commands."""
    READ = "read"
    """Read and list files."""
    WRITE = "write"
    """Write, move and remove files."""
    CONNECT = "connect"
    """Open TCP connections inside."""
    LOGS = "logs"
    """Read a job's log."""
    METRICS = "metrics"
    """Read the node's metrics."""


@final
@dataclass(frozen=True, slots=True)
class Grant:
    """What the bearer of a token, or the opener of a stream, may do."""

    actor: str
    """Who acts, as the coordinator authenticated it."""
    object: str
    """The one thing it may touch: `sandbox/<id>`, `job/<id>` or `node/<id>`."""
    verbs: frozenset[str]
    """Of Verb; words that this version does not know allow nothing."""


Authorizer = Callable[[web.BaseRequest], Grant]
"""Tells a request's grant; raises ProblemError (401) when it has none."""


@final
class DoorAuthorizer:
    """The grant of a request: the stream's own when it came through the link, else that of its data token."""

    __slots__ = ("_keys", "_node_id", "_now_unix_s")

    def __init__(self, node_id: str, keys: Callable[[], Mapping[int, bytes]], now_unix_s: Callable[[], float]) -> None:
        """`keys` gives the node's current data keys; `now_unix_s` the coordinator's time."""
        self._node_id = node_id
        self._keys = keys
        self._now_unix_s = now_unix_s

    def __call__(self, request: web.BaseRequest) -> Grant:
        """Tell the request's grant; raises ProblemError (401)."""
        stream = stream_of(request.transport)
        if stream is not None:
            return Grant(stream.actor, stream.object, frozenset(stream.verbs))
        return self._from_token(request.headers.get("Authorization", ""))

    def _from_token(self, header: str) -> Grant:
        if not header.startswith(_BEARER):
            raise unauthenticated("no data token: send `Authorization: Bearer kpd1...`")
        try:
            claims = datatoken.verify(header[len(_BEARER) :].strip(), self._keys(), self._node_id, self._now_unix_s())
        except DataTokenError as error:
            raise unauthenticated(f"{error.code}: {error}") from None
        return Grant(claims.actor, claims.object, frozenset(claims.verbs))


def check(grant: Grant, verb: Verb, object_: str) -> None:
    """Raise ProblemError (403) unless the grant covers this verb on this object."""
    if grant.object != object_:
        raise forbidden(f"the grant is for {grant.object}, the request is for {object_}")
    if verb not in grant.verbs:
        raise forbidden(f"the grant does not allow {verb} on {object_}")
