"""The server itself: health, info, the OpenAPI document, the overview and the metrics."""

from typing import Final

from aiohttp.web import Response

from kernpool.bodies import HealthBody, ServerInfo, StatusBody
from kernpool_coordinator.http import metrics
from kernpool_coordinator.http.route import Answer, Call, Media, Route
from kernpool_coordinator.tokens.actor import Verb


async def health(_: Call[None, None]) -> Answer:
    """Alive and answering: for load balancers and probes."""
    return {"status": "ok"}


async def info(call: Call[None, None]) -> Answer:
    """Who this coordinator is and where agents dial."""
    return await call.api.core.info()


async def status(call: Call[None, None]) -> Answer:
    """All of it at a glance."""
    return await call.api.core.status(call.actor)


async def openapi(_: Call[None, None]) -> Answer:
    """The document that is made from the route table."""
    from kernpool_coordinator.http import handlers
    from kernpool_coordinator.http.openapi import document

    return Response(body=document(handlers.ROUTES), content_type=Media.JSON)


async def scrape(call: Call[None, None]) -> Answer:
    """Prometheus text."""
    return Response(body=call.api.metrics.text(), headers={"Content-Type": metrics.CONTENT_TYPE})


ROUTES: Final = (
    Route(
        method="GET", path="/api/v1/health", handler=health, verb=None, answer=HealthBody,
        summary="Whether the coordinator answers; needs no token.",
    ),
    Route(
        method="GET", path="/api/v1/info", handler=info, verb=Verb.VIEW, answer=ServerInfo,
        summary="Version, cluster id, the CA's pin and the URL that agents dial.",
    ),
    Route(
        method="GET", path="/api/v1/status", handler=status, verb=Verb.VIEW, answer=StatusBody,
        summary="Server, nodes, clusters and counts in one answer.",
    ),
    Route(
        method="GET", path="/api/v1/openapi.json", handler=openapi, verb=Verb.VIEW,
        summary="This document.",
    ),
    Route(
        method="GET", path="/metrics", handler=scrape, verb=Verb.VIEW, media=Media.TEXT,
        summary="Prometheus metrics.",
    ),
)  # fmt: skip
