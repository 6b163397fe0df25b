"""The route table and the tree that finds a route in it."""

import pytest

from kernpool_coordinator.http.handlers import ROUTES
from kernpool_coordinator.http.route import Route
from kernpool_coordinator.http.router import Router


@pytest.fixture(scope="module")
def router() -> Router:
    return Router(ROUTES)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_every_route_is_found_with_its_parts(router: Router, route: Route) -> None:
    """No route hides another one."""
    path = route.path
    for name in route.params:
        path = path.replace(f"{{{name}}}", f"a-{name}")
    match = router.match(route.method, path)
    assert match.route is route
    assert match.path == {name: f"a-{name}" for name in route.params}


def test_a_fixed_segment_wins_over_a_varying_one_for_its_own_methods_only(router: Router) -> None:
    """POST /sandboxes/remove removes many; a sandbox could in theory be called `remove`."""
    fixed = router.match("POST", "/api/v1/sandboxes/remove").route
    varying = router.match("GET", "/api/v1/sandboxes/remove")
    assert fixed is not None
    assert fixed.path == "/api/v1/sandboxes/remove"
    assert varying.route is not None
    assert varying.path == {"sandbox": "remove"}


def test_an_encoded_slash_stays_within_its_part(router: Router) -> None:
    """A name with a slash must not reach another route."""
    match = router.match("GET", "/api/v1/clusters/a%2Fb%20c")
    assert match.path == {"name": "a/b c"}


@pytest.mark.parametrize(
    "path", ["/", "", "/api", "/api/v1/jobs/", "/api/v1//jobs", "/api/v1/nodes/x/y", "/" + "a/" * 5000]
)
def test_other_paths_match_nothing(router: Router, path: str) -> None:
    """No trailing slash, no empty part, no prefix; a path of thousands of parts costs nothing."""
    match = router.match("GET", path)
    assert match.route is None
    assert match.allowed == ()


def test_a_wrong_method_tells_the_right_ones(router: Router) -> None:
    """The answer is 405 with Allow, not 404."""
    assert router.match("PATCH", "/api/v1/jobs").allowed == ("GET", "POST")


def test_head_is_served_by_get(router: Router) -> None:
    """Load balancers probe with HEAD."""
    match = router.match("HEAD", "/api/v1/health")
    assert match.route is not None
    assert match.route.method == "GET"


def test_every_route_but_health_asks_for_a_verb() -> None:
    """A new route cannot forget authorization: it has to say so here."""
    assert [route.path for route in ROUTES if route.verb is None] == ["/api/v1/health"]
