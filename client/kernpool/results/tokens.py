"""Tokens, a way to a node, and events."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from kernpool.protocol import fields as read

Object = Mapping[str, Any]


@final
@dataclass(frozen=True, slots=True)
class JoinToken:
    """A token with which machines join; its text is there only in the answer that made it."""

    id: str
    token: str | None = field(repr=False)
    pool: str
    uses_left: int
    expires_unix_s: float
    raw: Object = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def read(cls, data: Object) -> "JoinToken":
        """Read the JSON form."""
        return cls(
            read.name(data, "id"),
            read.maybe_text(data, "token"),
            read.text(data, "pool"),
            read.whole(data, "uses_left"),
            read.number(data, "expires_unix_s"),
            data,
        )


@final
@dataclass(frozen=True, slots=True)
class ApiToken:
    """A token of the API; its text is there only in the answer that made it."""

    id: str
    name: str
    role: str
    workspace: str
    token: str | None = field(repr=False)
    created_unix_s: float
    raw: Object = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def read(cls, data: Object) -> "ApiToken":
        """Read the JSON form."""
        return cls(
            read.name(data, "id"),
            read.text(data, "name"),
            read.text(data, "role"),
            read.text(data, "workspace"),
            read.maybe_text(data, "token"),
            read.number(data, "created_unix_s"),
            data,
        )


@final
@dataclass(frozen=True, slots=True)
class Access:
    """A way straight to a node."""

    urls: tuple[str, ...]
    server_name: str
    ca_pem: str
    token: str = field(repr=False)
    expires_in_s: float

    @classmethod
    def read(cls, data: Object) -> "Access":
        """Read the JSON form."""
        return cls(
            read.texts(data, "urls"),
            read.text(data, "server_name"),
            read.text(data, "ca_pem"),
            read.text(data, "token"),
            read.number(data, "expires_in_s"),
        )


@final
@dataclass(frozen=True, slots=True)
class Event:
    """One change of anything, with who and why."""

    id: int
    at_unix_s: float
    actor: str
    verb: str
    object: str
    cause: str
    data: dict[str, Any]
    raw: Object = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def read(cls, data: Object) -> "Event":
        """Read the JSON form."""
        return cls(
            read.whole(data, "id"),
            read.number(data, "at_unix_s"),
            read.text(data, "actor"),
            read.text(data, "verb"),
            read.text(data, "object"),
            read.text(data, "cause"),
            read.any_map(data, "data"),
            data,
        )
