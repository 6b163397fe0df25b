"""The way of every API request: find the route, know the caller, ask once, check the input, answer, count."""

import asyncio
import logging
import time
from collections.abc import Awaitable
from typing import Any, Final, final

from aiohttp.web import BaseRequest, HTTPException, Response, StreamResponse
from aiohttp.web_protocol import RequestPayloadError
from pydantic import BaseModel
from pydantic_core import to_json

from kernpool_coordinator.core.shapes import Listing
from kernpool_coordinator.errors import CoordinatorError, InvalidError, NotFoundError, UnauthenticatedError
from kernpool_coordinator.http import body, checks, problems
from kernpool_coordinator.http.context import ApiContext
from kernpool_coordinator.http.problems import DeadlineError, MethodError
from kernpool_coordinator.http.route import Answer, Call, Media, Route
from kernpool_coordinator.http.router import Match, Router
from kernpool_coordinator.tokens.actor import Actor, Role

log = logging.getLogger("kernpool.http")

NOBODY: Final = Actor(name="nobody", role=Role.VIEWER, workspace="")
"""Who calls a route that needs no token."""
_UNKNOWN: Final = "unknown"
"""The `route` label of requests that match none: a client must not be able to make labels."""


@final
class Dispatcher:
    """Answers every request with exactly one response; nothing but a cut connection ever leaves it as an exception."""

    __slots__ = ("_api", "_changes", "_router")

    def __init__(self, api: ApiContext, router: Router) -> None:
        self._api = api
        self._router = router
        self._changes: set[asyncio.Future[Any]] = set()
        """Changes that run; they run to their end even when their caller got a 504 or hung up."""

    async def handle(self, request: BaseRequest) -> StreamResponse:
        """Answer `request`."""
        started_s = time.monotonic()
        match = self._router.match(request.method, request.rel_url.raw_path)
        status = 500
        try:
            response = await self._answer(request, match)
            status = response.status
        except ConnectionError:
            status = 499
            raise
        finally:
            route = match.route
            seconds = None if route is None or route.long else time.monotonic() - started_s
            self._api.metrics.answered(route.name if route else _UNKNOWN, status, seconds)
        return response

    async def _answer(self, request: BaseRequest, match: Match) -> StreamResponse:
        """The response of the handler, or a Problem; raises ConnectionError when only a cut can tell the client."""
        try:
            return await self._serve(request, match)
        except CoordinatorError as error:
            headers = {"Allow": ", ".join(match.allowed)} if match.allowed else None
            return _unless_begun(request, problems.response(error, headers), error)
        except HTTPException as error:
            return _unless_begun(request, problems.of_http(error), error)
        except RequestPayloadError as error:
            raise ConnectionResetError("the client's body was cut") from error
        except ConnectionError:
            raise
        except Exception as error:
            log.exception("%s %s failed", request.method, match.route.path if match.route else request.path)
            return _unless_begun(request, problems.internal(), error)

    async def _serve(self, request: BaseRequest, match: Match) -> StreamResponse:
        route = match.route
        if route is None:
            raise _no_route(request, match)
        if route.verb is None:
            actor = NOBODY
        else:
            # Before anything is read from the body: strangers get no buffer of ours.
            actor = self._api.core.authenticate(bearer(request))
            self._api.core.authorize(actor, route.verb, route.object_of(match.path))
        if route.long:
            with self._api.streams.hold(actor.token_id):
                call = await self._checked(request, route, match.path, actor)
                return _response(route, await route.handler(call))
        call = await self._checked(request, route, match.path, actor)
        return _response(route, await self._in_time(request, route.handler(call)))

    async def _checked(self, request: BaseRequest, route: Route, path: dict[str, str], actor: Actor) -> Call[Any, Any]:
        """The call with query and body as their models."""
        if route.raw:
            return Call(request, actor, path, None, None, self._api)
        if route.query is not None:
            query = checks.parse_query(route.query, request.query)
        elif request.query_string:
            raise InvalidError(f"{route.method} {route.path} takes no query parameters.")
        else:
            query = None
        return Call(request, actor, path, query, await self._body(request, route.body), self._api)

    async def _body(self, request: BaseRequest, model: type[BaseModel] | None) -> BaseModel | None:
        if model is None:
            return None
        settings = self._api.settings
        data = await body.read(request, bytes_max=settings.body_bytes_max, wait_s=settings.body_wait_s)
        parsed = checks.parse_body(model, data)
        key = request.headers.get("Idempotency-Key")
        if key is None or "idempotency_key" not in model.model_fields or parsed.idempotency_key is not None:  # type: ignore[attr-defined]
            return parsed
        # Checked by the model as if it had stood in the body.
        return checks.parse_body(model, to_json({**parsed.model_dump(exclude_unset=True), "idempotency_key": key}))

    async def _in_time(self, request: BaseRequest, handler: Awaitable[Answer]) -> Answer:
        """The handler's answer within the request deadline.

        A change is never cancelled half done: the caller gets a 504 and the change runs to its end.
        """
        deadline_s = self._api.settings.request_deadline_s
        if request.method in ("GET", "HEAD"):
            try:
                async with asyncio.timeout(deadline_s):
                    return await handler
            except TimeoutError as error:
                raise DeadlineError(f"The answer was not ready within {deadline_s:g} s.") from error
        task = asyncio.ensure_future(handler)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        done, _ = await asyncio.wait({task}, timeout=deadline_s)
        if done:
            return task.result()
        task.add_done_callback(_ran_out)
        raise DeadlineError(
            f"The change was not done within {deadline_s:g} s; it goes on.",
            hint="Look at the object before you try again, or repeat the request with the same idempotency key.",
        )

    async def settle(self, timeout_s: float) -> None:
        """Let changes that outlive their request finish, before the core closes."""
        if self._changes:
            await asyncio.wait(self._changes, timeout=timeout_s)


def _ran_out(task: asyncio.Future[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("a change that was answered 504 ended with: %s", error)


def bearer(request: BaseRequest) -> str:
    """The token of `Authorization: Bearer TOKEN`; raises UnauthenticatedError."""
    header = request.headers.get("Authorization", "")
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer" or not (token := token.strip()):
        raise UnauthenticatedError(
            "The request carries no API token.",
            hint="Send the header `Authorization: Bearer kpt_...`; a local install keeps its own in ~/.kernpool/token.",
        )
    return token


def _no_route(request: BaseRequest, match: Match) -> CoordinatorError:
    path = request.path[:200]
    if match.allowed:
        return MethodError(f"{request.method[:20]} is not possible on {path}, only {', '.join(match.allowed)}.")
    return NotFoundError(f"There is nothing at {path}.", hint="GET /api/v1/openapi.json lists every path.")


def _response(route: Route, answer: Answer) -> StreamResponse:
    """What a handler gave, as HTTP."""
    match answer:
        case StreamResponse():
            return answer
        case None:
            return Response(status=204)
        case Listing(items, next_):
            return _json(route.status, {"items": items, "next": next_})
        case _:
            return _json(route.status, answer)


def _json(status: int, document: Any) -> Response:
    return Response(status=status, body=to_json(document), headers=_JSON_HEADERS)


_JSON_HEADERS: Final = {"Content-Type": Media.JSON, "Cache-Control": "no-store"}


def _unless_begun(request: BaseRequest, answer: Response, error: Exception) -> Response:
    """`answer`, or a cut connection when half of another answer is out already."""
    if request.writer.output_size > 0:
        raise ConnectionResetError("the answer had begun") from error
    return answer
