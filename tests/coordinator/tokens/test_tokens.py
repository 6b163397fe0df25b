"""Who may do what."""

import itertools
from typing import Any

import pytest

from kernpool.bodies import ApiTokenRequest
from kernpool_coordinator.errors import ForbiddenError, InvalidError, NotFoundError, UnauthenticatedError
from kernpool_coordinator.tokens.actor import Actor, Role, Verb
from kernpool_coordinator.tokens.rules import RULES, Kind

LOCAL = "kpt_" + "a" * 43


async def test_a_token_is_its_actor_until_it_is_revoked(stage: Any) -> None:
    await stage.open()
    body = await stage.plane.create_token(stage.ann, ApiTokenRequest(name="ci", role="user", workspace="w"))
    for _ in range(2):
        actor = stage.plane.authenticate(body["token"])
        assert (actor.name, actor.role, actor.workspace, actor.token_id) == ("ci", Role.USER, "w", body["id"])
        await stage.reopen()
    assert [(one["id"], one["token"]) for one in (await stage.plane.tokens(stage.ann)).items] == [(body["id"], None)]
    await stage.plane.revoke_token(stage.ann, body["id"])
    for _ in range(2):
        with pytest.raises(UnauthenticatedError):
            stage.plane.authenticate(body["token"])
        await stage.reopen()
    with pytest.raises(NotFoundError):
        await stage.plane.revoke_token(stage.ann, body["id"])


async def test_the_store_holds_no_token_text(stage: Any) -> None:
    await stage.open()
    body = await stage.plane.create_token(stage.ann, ApiTokenRequest(name="ci"))
    await stage.settled()
    on_disk = b"".join(path.read_bytes() for path in stage.state_dir.iterdir())
    assert body["token"].encode() not in on_disk


async def test_the_local_token_follows_its_file(stage: Any) -> None:
    """A person deletes the token file: the next start makes a new one, and the old text is worth nothing."""
    await stage.open()
    for _ in range(2):
        await stage.plane.ensure_local_token(LOCAL)
    assert stage.plane.authenticate(LOCAL).is_admin
    await stage.plane.ensure_local_token("kpt_" + "b" * 43)
    with pytest.raises(UnauthenticatedError):
        stage.plane.authenticate(LOCAL)
    with pytest.raises(InvalidError):
        await stage.plane.ensure_local_token("kpt_short")


@pytest.mark.parametrize("text", ["", "kpt_", "Bearer kpt_x", "kpt_" + "x" * 43])
async def test_anything_else_is_nobody(stage: Any, text: str) -> None:
    await stage.open()
    with pytest.raises(UnauthenticatedError):
        stage.plane.authenticate(text)


async def test_roles_allow_what_the_table_says_and_nothing_else(stage: Any) -> None:
    await stage.open()
    order = [Role.VIEWER, Role.USER, Role.ADMIN]
    for role, kind, verb in itertools.product(Role, Kind, Verb):
        actor = Actor("x", role, "default")
        least = RULES[kind].get(verb)
        if least is not None and order.index(role) >= order.index(least):
            stage.plane.authorize(actor, verb, f"{kind}/*")
        else:
            with pytest.raises(ForbiddenError, match=f"may not {verb} {kind}"):
                stage.plane.authorize(actor, verb, f"{kind}/*")


async def test_what_lies_in_another_workspace_is_not_even_there(stage: Any) -> None:
    await stage.open()
    job_id = await stage.launch()
    stage.plane.authorize(stage.ann, Verb.CHANGE, f"job/{job_id}")
    stage.plane.authorize(Actor("root", Role.ADMIN, "elsewhere"), Verb.CHANGE, f"job/{job_id}")
    with pytest.raises(NotFoundError):
        stage.plane.authorize(stage.eve, Verb.VIEW, f"job/{job_id}")
    with pytest.raises(InvalidError):
        stage.plane.authorize(stage.ann, Verb.VIEW, "planet/mars")
