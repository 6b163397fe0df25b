"""Sandboxes: create in bulk, list, show, extend, remove, and a token for direct access to the node."""

from typing import Annotated, Final, Literal

from pydantic import Field

from kernpool.bodies import (
    AccessBody,
    CreateSandboxesBody,
    ExtendSandboxBody,
    RemovedBody,
    RemoveSandboxesBody,
    SandboxBody,
    SandboxesDone,
    SandboxItemBody,
)
from kernpool_coordinator.errors import InvalidError
from kernpool_coordinator.http import ndjson
from kernpool_coordinator.http.access import access
from kernpool_coordinator.http.connection import abandonable
from kernpool_coordinator.http.queries import Filter, PageQuery
from kernpool_coordinator.http.route import Answer, Call, Media, Route
from kernpool_coordinator.tokens.actor import Verb


class SandboxesQuery(PageQuery):
    """Which sandboxes."""

    label: Annotated[tuple[Filter, ...], Field(max_length=64)] = ()
    """`KEY=VALUE`, as often as needed; all must match."""
    state: Literal["", "starting", "running", "ended"] = ""


async def create(call: Call[None, CreateSandboxesBody]) -> Answer:
    """Items as they come, then the sum."""
    batches = call.api.core.create_sandboxes(call.actor, call.body)
    with abandonable(call.request):
        return await ndjson.answer(call.request, batches)


async def list_sandboxes(call: Call[SandboxesQuery, None]) -> Answer:
    """By id; ended ones only when asked for."""
    query = call.query
    return await call.api.core.sandboxes(
        call.actor, labels=_labels(query.label), state=query.state, limit=query.limit, after=query.after
    )


async def show(call: Call[None, None]) -> Answer:
    """By id."""
    return await call.api.core.sandbox(call.actor, call.path["sandbox"])


async def extend(call: Call[None, ExtendSandboxBody]) -> Answer:
    """Its time to live counts anew from now."""
    return await call.api.core.extend_sandbox(call.actor, call.path["sandbox"], call.body.ttl_s)


async def remove_many(call: Call[None, RemoveSandboxesBody]) -> Answer:
    """By ids, by labels, or all."""
    return await call.api.core.remove_sandboxes(call.actor, call.body)


async def remove(call: Call[None, None]) -> Answer:
    """Ended and gone when answered, unless its node is away (then it is listed as unreachable)."""
    return await call.api.core.remove_sandboxes(call.actor, RemoveSandboxesBody(ids=[call.path["sandbox"]]))


async def open_access(call: Call[None, None]) -> Answer:
    """A way straight to the node, for everything that can be done in this sandbox."""
    sandbox_id = call.path["sandbox"]
    node_id = call.api.core.sandbox_node(sandbox_id)
    return access(call.api, call.actor, node_id, f"sandbox/{sandbox_id}", ("exec", "read", "write", "connect"))


def _labels(pairs: tuple[str, ...]) -> dict[str, str]:
    """KEY=VALUE each as a dict."""
    labels = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise InvalidError(f"`label` in the query is `{pair}`, expected KEY=VALUE.")
        labels[key] = value
    return labels


_ONE: Final = "/api/v1/sandboxes/{sandbox}"

ROUTES: Final = (
    Route(
        method="POST", path="/api/v1/sandboxes", handler=create, verb=Verb.CREATE, kind="sandbox",
        body=CreateSandboxesBody, answer=SandboxItemBody, last=SandboxesDone, media=Media.NDJSON, long=True,
        summary="Create sandboxes, optionally run one command in each; one line an item, then SandboxesDone.",
    ),
    Route(
        method="GET", path="/api/v1/sandboxes", handler=list_sandboxes, verb=Verb.VIEW, kind="sandbox",
        query=SandboxesQuery, answer=SandboxBody, page=True,
        summary="Sandboxes by id; ended ones only with state=ended.",
    ),
    Route(
        method="POST", path="/api/v1/sandboxes/remove", handler=remove_many, verb=Verb.REMOVE, kind="sandbox",
        body=RemoveSandboxesBody, answer=RemovedBody, summary="Remove sandboxes by ids, by labels, or all.",
    ),
    Route(
        method="GET", path=_ONE, handler=show, verb=Verb.VIEW, kind="sandbox", key="sandbox",
        answer=SandboxBody, summary="One sandbox.",
    ),
    Route(
        method="DELETE", path=_ONE, handler=remove, verb=Verb.REMOVE, kind="sandbox", key="sandbox",
        answer=RemovedBody, summary="Remove one sandbox.",
    ),
    Route(
        method="POST", path=f"{_ONE}/extend", handler=extend, verb=Verb.CHANGE, kind="sandbox", key="sandbox",
        body=ExtendSandboxBody, answer=SandboxBody, summary="Let a sandbox live `ttl_s` from now.",
    ),
    Route(
        method="POST", path=f"{_ONE}/access", handler=open_access, verb=Verb.EXEC, kind="sandbox", key="sandbox",
        answer=AccessBody, summary="A short-lived token for exec, files and ports straight at the sandbox's node.",
    ),
)  # fmt: skip
