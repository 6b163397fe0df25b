"""The API's handlers, one file for each kind of object, and the table of all routes."""

from typing import Final

from kernpool_coordinator.http.handlers import (
    clusters,
    dataplane,
    events,
    jobs,
    logs,
    nodes,
    pools,
    sandboxes,
    server,
    tokens,
)
from kernpool_coordinator.http.route import Route

ROUTES: Final[tuple[Route, ...]] = (
    *server.ROUTES,
    *nodes.ROUTES,
    *clusters.ROUTES,
    *jobs.ROUTES,
    *logs.ROUTES,
    *sandboxes.ROUTES,
    *dataplane.ROUTES,
    *pools.ROUTES,
    *tokens.ROUTES,
    *events.ROUTES,
)
