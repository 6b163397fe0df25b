"""Finds the route of a request: a tree of path segments, a fixed segment before a varying one."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import final
from urllib.parse import unquote

from kernpool_coordinator.http.route import Route

SEGMENTS_MAX = 16


@final
@dataclass(slots=True)
class _Node:
    """All routes below one prefix."""

    fixed: dict[str, "_Node"] = field(default_factory=dict)
    varying: "_Node | None" = None
    routes: dict[str, Route] = field(default_factory=dict)
    """By method, of the path that ends here."""


@final
@dataclass(slots=True, frozen=True)
class Match:
    """The outcome of a look-up: a route, or the methods that the path would allow, or neither."""

    route: Route | None
    path: dict[str, str]
    allowed: tuple[str, ...] = ()


class Router:
    """An immutable set of routes; asserts that no two answer to the same method and path."""

    __slots__ = ("_root", "routes")

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._root = _Node()
        for route in self.routes:
            self._add(route)

    def _add(self, route: Route) -> None:
        node = self._root
        for segment in route.path.split("/")[1:]:
            if segment.startswith("{"):
                node.varying = node.varying or _Node()
                node = node.varying
            else:
                node = node.fixed.setdefault(segment, _Node())
        assert route.method not in node.routes, f"two routes for {route.name}"
        node.routes[route.method] = route

    def match(self, method: str, raw_path: str) -> Match:
        """The route for a method and a path as it stands in the request line (still percent-encoded)."""
        segments = raw_path.split("/")[1:]
        if len(segments) > SEGMENTS_MAX:
            return Match(None, {})
        wanted = "GET" if method == "HEAD" else method
        allowed: set[str] = set()
        for node, values in _ends(self._root, segments, 0, ()):
            if (route := node.routes.get(wanted)) is not None:
                return Match(route, dict(zip(route.params, map(unquote, values), strict=True)))
            allowed.update(node.routes)
        return Match(None, {}, tuple(sorted(allowed)))


def _ends(
    node: _Node, segments: list[str], at: int, values: tuple[str, ...]
) -> Iterable[tuple[_Node, tuple[str, ...]]]:
    """Every place where the path may end, fixed segments first, with the varying segments' values."""
    if at == len(segments):
        if node.routes:
            yield node, values
        return
    segment = segments[at]
    if (below := node.fixed.get(segment)) is not None:
        yield from _ends(below, segments, at + 1, values)
    if node.varying is not None and segment:
        yield from _ends(node.varying, segments, at + 1, (*values, segment))
