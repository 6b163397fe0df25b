"""A route as data: what it answers to, who may call it, what it takes and gives, and the function that does it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from aiohttp.web import BaseRequest, StreamResponse
from pydantic import BaseModel, ConfigDict

from kernpool_coordinator.core.shapes import Listing
from kernpool_coordinator.tokens.actor import Actor, Verb

if TYPE_CHECKING:
    from kernpool_coordinator.http.context import ApiContext


class QueryModel(BaseModel):
    """Base of all query strings: unknown parameters are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


QueryT = TypeVar("QueryT", bound=QueryModel | None)
BodyT = TypeVar("BodyT", bound=BaseModel | None)


class Media(StrEnum):
    """What the body of a good answer is."""

    JSON = "application/json"
    NDJSON = "application/x-ndjson"
    BYTES = "application/octet-stream"
    TEXT = "text/plain"
    NOTHING = ""
    """204 without a body."""
    WEBSOCKET = "websocket"
    """101, then WebSocket frames."""


@final
@dataclass(slots=True, frozen=True)
class Call(Generic[QueryT, BodyT]):
    """One authenticated, authorized and validated request."""

    request: BaseRequest
    actor: Actor
    path: dict[str, str]
    """The `{name}` parts of the route's path, decoded."""
    query: QueryT
    body: BodyT
    api: "ApiContext"


Answer = StreamResponse | Listing | dict[str, Any] | None
"""A handler gives a JSON document, a page, nothing (204), or has written the response itself."""

Handler = Callable[[Call[Any, Any]], Awaitable[Answer]]


@final
@dataclass(slots=True, frozen=True, kw_only=True)
class Route:
    """One method on one path."""

    method: str
    path: str
    """With `{name}` for a part that varies."""
    handler: Handler
    summary: str
    """One sentence for the OpenAPI document."""
    verb: Verb | None
    """What is asked of authorize(); None: no token is needed."""
    kind: str = "server"
    """KIND of the object given to authorize()."""
    key: str = ""
    """The path part that is the object's id; empty: `*`."""
    query: type[QueryModel] | None = None
    body: type[BaseModel] | None = None
    answer: type[BaseModel] | None = None
    """Model of a JSON answer, or of each line of NDJSON; for a page, of each item."""
    last: type[BaseModel] | None = None
    """Model of the last line of NDJSON, where it differs."""
    page: bool = False
    status: int = 200
    media: Media = Media.JSON
    also: Media | None = None
    """A second kind of good answer, which the query asks for."""
    long: bool = False
    """It may last: counted against the stream limits, no deadline for the whole."""
    raw: bool = False
    """Query and body go to the node as they are; the models only document them."""
    takes_bytes: bool = False
    """Its body is bytes, not JSON."""
    params: tuple[str, ...] = field(init=False)
    """Names of the varying path parts, in order."""

    def __post_init__(self) -> None:
        parts = tuple(part[1:-1] for part in self.path.split("/") if part.startswith("{"))
        assert not self.key or self.key in parts, f"{self.path} has no part {self.key}"
        object.__setattr__(self, "params", parts)

    @property
    def name(self) -> str:
        """A unique name: the OpenAPI operationId and the `route` label of the metrics."""
        return f"{self.method.lower()} {self.path}"

    def object_of(self, path: dict[str, str]) -> str:
        """KIND/ID as authorize() takes it."""
        return f"{self.kind}/{path[self.key] if self.key else '*'}"
