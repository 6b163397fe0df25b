"""API tokens and join tokens: create (the text is shown once), list, revoke."""

from typing import Final

from kernpool.bodies import ApiTokenBody, ApiTokenRequest, JoinTokenBody, JoinTokenRequest
from kernpool_coordinator.http.queries import PageQuery, page_of
from kernpool_coordinator.http.route import Answer, Call, Media, Route
from kernpool_coordinator.tokens.actor import Verb


async def create(call: Call[None, ApiTokenRequest]) -> Answer:
    """With its text."""
    return await call.api.core.create_token(call.actor, call.body)


async def list_tokens(call: Call[PageQuery, None]) -> Answer:
    """Without text."""
    return page_of((await call.api.core.tokens(call.actor)).items, call.query)


async def revoke(call: Call[None, None]) -> Answer:
    """Refused from the next request on."""
    await call.api.core.revoke_token(call.actor, call.path["token"])
    return None


async def create_join(call: Call[None, JoinTokenRequest]) -> Answer:
    """With its text."""
    return await call.api.core.create_join_token(call.actor, call.body)


async def list_joins(call: Call[PageQuery, None]) -> Answer:
    """Without text; used up and expired ones are left out."""
    return page_of((await call.api.core.join_tokens(call.actor)).items, call.query)


async def revoke_join(call: Call[None, None]) -> Answer:
    """Refused from the next enrolment on."""
    await call.api.core.revoke_join_token(call.actor, call.path["token"])
    return None


ROUTES: Final = (
    Route(
        method="POST", path="/api/v1/tokens", handler=create, verb=Verb.CREATE, kind="token", status=201,
        body=ApiTokenRequest, answer=ApiTokenBody, summary="Create an API token; its text is shown once.",
    ),
    Route(
        method="GET", path="/api/v1/tokens", handler=list_tokens, verb=Verb.VIEW, kind="token",
        query=PageQuery, answer=ApiTokenBody, page=True, summary="API tokens, without their text.",
    ),
    Route(
        method="DELETE", path="/api/v1/tokens/{token}", handler=revoke, verb=Verb.REMOVE, kind="token", key="token",
        status=204, media=Media.NOTHING, summary="Revoke an API token at once.",
    ),
    Route(
        method="POST", path="/api/v1/join-tokens", handler=create_join, verb=Verb.CREATE, kind="join-token", status=201,
        body=JoinTokenRequest, answer=JoinTokenBody, summary="Create a join token for agents; its text is shown once.",
    ),
    Route(
        method="GET", path="/api/v1/join-tokens", handler=list_joins, verb=Verb.VIEW, kind="join-token",
        query=PageQuery, answer=JoinTokenBody, page=True, summary="Join tokens that still admit nodes.",
    ),
    Route(
        method="DELETE", path="/api/v1/join-tokens/{token}", handler=revoke_join, verb=Verb.REMOVE, kind="join-token",
        key="token", status=204, media=Media.NOTHING, summary="Revoke a join token at once.",
    ),
)  # fmt: skip
