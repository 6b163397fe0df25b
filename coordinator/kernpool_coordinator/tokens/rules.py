"""The table of roles: who may do what to which kind of object."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from kernpool_coordinator.errors import ForbiddenError, InvalidError, NotFoundError
from kernpool_coordinator.tokens.actor import Actor, Role, Verb


class Kind(StrEnum):
    """Kinds of objects, as in `KIND/ID`."""

    JOB = "job"
    CLUSTER = "cluster"
    SANDBOX = "sandbox"
    NODE = "node"
    POOL = "pool"
    EVENT = "event"
    TOKEN = "token"  # noqa: S105  (a kind, no secret)
    JOIN_TOKEN = "join-token"  # noqa: S105
    SERVER = "server"


_RANK: Final[Mapping[Role, int]] = {Role.VIEWER: 0, Role.USER: 1, Role.ADMIN: 2}
_WORK: Final[Mapping[Verb, Role]] = {
    Verb.VIEW: Role.VIEWER,
    Verb.LOGS: Role.VIEWER,
    Verb.CREATE: Role.USER,
    Verb.CHANGE: Role.USER,
    Verb.REMOVE: Role.USER,
    Verb.EXEC: Role.USER,
}
_FLEET: Final[Mapping[Verb, Role]] = {
    Verb.VIEW: Role.VIEWER,
    Verb.CREATE: Role.ADMIN,
    Verb.CHANGE: Role.ADMIN,
    Verb.REMOVE: Role.ADMIN,
}
_TRUST: Final[Mapping[Verb, Role]] = dict.fromkeys((Verb.VIEW, Verb.CREATE, Verb.CHANGE, Verb.REMOVE), Role.ADMIN)

RULES: Final[Mapping[Kind, Mapping[Verb, Role]]] = {
    Kind.JOB: _WORK,
    Kind.CLUSTER: _WORK,
    Kind.SANDBOX: _WORK,
    Kind.NODE: _FLEET,
    Kind.POOL: _FLEET,
    Kind.EVENT: {Verb.VIEW: Role.VIEWER},
    Kind.SERVER: {Verb.VIEW: Role.VIEWER},
    Kind.TOKEN: _TRUST,
    Kind.JOIN_TOKEN: _TRUST,
}
"""The least role for each verb; a verb that is missing is allowed to nobody."""


def split(object_: str) -> tuple[Kind, str]:
    """Read `KIND/ID`. Raises InvalidError."""
    kind, _, name = object_.partition("/")
    try:
        return Kind(kind), name or "*"
    except ValueError:
        raise InvalidError(f"{object_!r} names no kind of object") from None


def check(actor: Actor, verb: Verb, kind: Kind, name: str, workspace: str | None) -> None:
    """Allow it, or raise.

    `workspace` is that of the object; None: it has none (a listing, the fleet). Raises ForbiddenError, and
    NotFoundError for an object of another workspace, whose existence is nobody's business.
    """
    if workspace is not None and not actor.is_admin and workspace != actor.workspace:
        raise NotFoundError(f"There is no {kind} {name}.")
    least = RULES[kind].get(verb)
    if least is None or _RANK[actor.role] < _RANK[least]:
        needs = f"it needs the role {least}" if least is not None else "nobody may"
        raise ForbiddenError(f"{actor.name} ({actor.role}) may not {verb} {kind} {name}: {needs}")
