"""Who gets in: every route asks for a token and for permission."""

import pytest
from running import Coordinator, Start

from kernpool_coordinator.http.handlers import ROUTES
from kernpool_coordinator.http.route import Route
from kernpool_coordinator.tokens.actor import Verb

GUARDED = [route for route in ROUTES if route.verb is not None]


def _filled(route: Route) -> str:
    path = route.path
    for name in route.params:
        path = path.replace(f"{{{name}}}", "1" if name == "port" else "x")
    return path


@pytest.mark.parametrize(
    "authorization", [None, "", "Bearer", "Bearer ", "Basic a3A6a3A=", "Bearer kpt_wrong", "kpt_wrong"]
)
async def test_every_route_refuses_without_a_good_token(coordinator: Coordinator, authorization: str | None) -> None:
    """Nobody who merely reaches the port learns or changes anything."""
    headers = {} if authorization is None else {"Authorization": authorization}
    for route in GUARDED:
        url = coordinator.url + _filled(route)
        async with coordinator.session.request(route.method, url, headers=headers) as answer:
            assert answer.status == 401, route.name
            assert answer.headers["WWW-Authenticate"].startswith("Bearer"), route.name
            assert (await answer.json())["code"] == "unauthenticated", route.name


async def test_a_stranger_learns_nothing_from_a_wrong_method_or_body(coordinator: Coordinator) -> None:
    """Authentication comes before the body is read: a huge or broken one is not even looked at."""
    async with coordinator.session.post(coordinator.url + "/api/v1/jobs", data=b"{" * 100) as answer:
        assert answer.status == 401


async def test_health_needs_no_token_and_answers_head(coordinator: Coordinator) -> None:
    """A load balancer probes."""
    async with coordinator.session.get(coordinator.url + "/api/v1/health") as answer:
        assert (answer.status, await answer.json()) == (200, {"status": "ok"})
    async with coordinator.session.head(coordinator.url + "/api/v1/health") as answer:
        assert (answer.status, await answer.read()) == (200, b"")


async def test_a_viewer_may_look_and_nothing_else(coordinator: Coordinator) -> None:
    """A dashboard's token cannot change anything, whichever route it tries."""
    viewer = await coordinator.json("POST", "/api/v1/tokens", json={"name": "board", "role": "viewer"})
    headers = {"Authorization": f"Bearer {viewer['token']}"}
    async with coordinator.session.get(coordinator.url + "/api/v1/jobs", headers=headers) as answer:
        assert answer.status == 200
    for route in GUARDED:
        if route.verb in (Verb.VIEW, Verb.LOGS):
            continue
        url = coordinator.url + _filled(route)
        async with coordinator.session.request(route.method, url, headers=headers, data=b"{}") as answer:
            assert answer.status in (403, 404), route.name


async def test_a_revoked_token_is_refused_at_once(coordinator: Coordinator) -> None:
    """A leaked token is revoked; its next request on the same kept-alive connection fails."""
    made = await coordinator.json("POST", "/api/v1/tokens", json={"name": "ci"})
    headers = {"Authorization": f"Bearer {made['token']}"}
    async with coordinator.session.get(coordinator.url + "/api/v1/jobs", headers=headers) as answer:
        assert answer.status == 200
    await coordinator.json("DELETE", f"/api/v1/tokens/{made['id']}")
    async with coordinator.session.get(coordinator.url + "/api/v1/jobs", headers=headers) as answer:
        assert answer.status == 401


async def test_listings_of_tokens_show_no_secret(coordinator: Coordinator) -> None:
    """The text of a token is shown once, when it is made."""
    api = await coordinator.json("POST", "/api/v1/tokens", json={"name": "ci"})
    join = await coordinator.json("POST", "/api/v1/join-tokens", json={})
    for path, secret in (("tokens", api["token"]), ("join-tokens", join["token"])):
        async with coordinator.request("GET", f"/api/v1/{path}") as answer:
            text = await answer.text()
        assert secret not in text
        assert secret.rpartition(".")[2] not in text
        assert '"token":null' in text


async def test_a_bearer_scheme_in_another_case_is_taken(coordinator: Coordinator) -> None:
    """RFC 9110: scheme names have no case."""
    headers = {"Authorization": f"bearer {coordinator.token}"}
    async with coordinator.session.get(coordinator.url + "/api/v1/info", headers=headers) as answer:
        assert answer.status == 200


async def test_the_metrics_need_a_token_and_count_by_route(coordinator: Coordinator) -> None:
    """Prometheus scrapes with a bearer token file; unknown paths make no labels of their own."""
    await coordinator.json("GET", "/api/v1/info")
    await coordinator.problem("GET", "/api/v1/made/up")
    async with coordinator.request("GET", "/metrics") as answer:
        text = await answer.text()
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert 'kernpool_http_requests_total{route="get /api/v1/info",status="200"} 1.0' in text
    assert 'kernpool_http_requests_total{route="unknown",status="404"} 1.0' in text
    assert "made" not in text
    assert 'kernpool_http_request_seconds_count{route="get /api/v1/info"} 1.0' in text


async def test_a_token_limits_its_own_streams(start: Start) -> None:
    """One script that leaks followers does not shut others out."""
    coordinator = await start(streams_per_token_max=2)
    async with (
        coordinator.request("GET", "/api/v1/events?follow=1"),
        coordinator.request("GET", "/api/v1/events?follow=1"),
    ):
        status, problem = await coordinator.problem("GET", "/api/v1/events?follow=1")
        assert (status, problem["code"]) == (503, "busy")
        assert "streams_per_token_max" in problem["hint"]
        await coordinator.json("GET", "/api/v1/info")  # short requests go on
