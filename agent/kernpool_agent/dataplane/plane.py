"""The data plane's application: one table of routes with the verb each needs, and the one guard before each handler."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from aiohttp import web

from kernpool_agent.dataplane import exec_stream, exec_websocket, files, logs, metrics, ports
from kernpool_agent.dataplane.access import Authorizer, Verb, check
from kernpool_agent.dataplane.admission import Admission, AdmissionLimits
from kernpool_agent.dataplane.answers import STARTED, cut
from kernpool_agent.dataplane.bodies import BODY_BYTES_MAX
from kernpool_agent.dataplane.failures import problem_or_log
from kernpool_agent.dataplane.foreground import Foreground
from kernpool_agent.dataplane.problems import not_found

if TYPE_CHECKING:
    from kernpool_agent.jobs.runtime import JobRuntime
    from kernpool_sandbox.runtime import SandboxRuntime

Handler = Callable[["DataPlane", web.Request, str], Awaitable[web.StreamResponse]]


@final
@dataclass(slots=True)
class DataPlane:
    """What the handlers work on."""

    runtime: "SandboxRuntime"
    jobs: "JobRuntime"
    authorizer: Authorizer
    admission: Admission
    foreground: Foreground


@final
@dataclass(frozen=True, slots=True)
class Route:
    """One address, what it needs and who serves it."""

    method: str
    path: str
    kind: str
    """Of the object in the grant: `<kind>/<id of the path>`."""
    verb: Verb
    handler: Handler


_SANDBOX: Final = "/v1/sandboxes/{id}"
ROUTES: Final = (
    Route("POST", f"{_SANDBOX}/exec", "sandbox", Verb.EXEC, exec_stream.exec_stream),
    Route("GET", f"{_SANDBOX}/exec", "sandbox", Verb.EXEC, exec_websocket.exec_websocket),
    Route("GET", f"{_SANDBOX}/files", "sandbox", Verb.READ, files.read_file),
    Route("GET", f"{_SANDBOX}/files/list", "sandbox", Verb.READ, files.list_directory),
    Route("GET", f"{_SANDBOX}/files/stat", "sandbox", Verb.READ, files.stat_file),
    Route("PUT", f"{_SANDBOX}/files", "sandbox", Verb.WRITE, files.write_file),
    Route("DELETE", f"{_SANDBOX}/files", "sandbox", Verb.WRITE, files.remove_file),
    Route("POST", f"{_SANDBOX}/files/mkdir", "sandbox", Verb.WRITE, files.make_directory),
    Route("POST", f"{_SANDBOX}/files/move", "sandbox", Verb.WRITE, files.move_file),
    Route("GET", f"{_SANDBOX}/ports/{{port}}", "sandbox", Verb.CONNECT, ports.open_port),
    Route("GET", "/v1/jobs/{id}/{index}/logs", "job", Verb.LOGS, logs.read_log),
)


def make_app(
    runtime: "SandboxRuntime",
    jobs: "JobRuntime",
    authorizer: Authorizer,
    *,
    limits: AdmissionLimits | None = None,
    metrics_text: Callable[[], bytes] | None = None,
    node_id: str = "",
) -> web.Application:
    """Build the application that both doors serve; without `metrics_text` there is no /metrics."""
    plane = DataPlane(runtime, jobs, authorizer, Admission(limits or AdmissionLimits()), Foreground(runtime))
    app = web.Application(client_max_size=BODY_BYTES_MAX)
    for route in ROUTES:
        app.router.add_route(route.method, route.path, _guarded(plane, route))
    if metrics_text is not None:
        app.router.add_route("GET", "/metrics", metrics.handler(metrics_text, authorizer, node_id))
    app.router.add_route("*", "/{rest:.*}", _no_such_address)

    async def wait_for_kills(_app: web.Application) -> None:
        await plane.foreground.close()

    app.on_cleanup.append(wait_for_kills)
    return app


def _guarded(plane: DataPlane, route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def serve(request: web.Request) -> web.StreamResponse:
        try:
            id_ = request.match_info["id"]
            object_ = f"{route.kind}/{id_}"
            check(plane.authorizer(request), route.verb, object_)
            with plane.admission.admitted(object_):
                return await route.handler(plane, request, id_)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - the border: every error becomes an answer or a cut, and is told once
            return _failed(request, error)

    return serve


def _failed(request: web.Request, error: Exception) -> web.Response:
    """Answer an error, or cut the answer that has begun."""
    problem = problem_or_log(error, f"{request.method} {request.path} failed")
    if STARTED in request:
        cut(request)
    return problem.response()


async def _no_such_address(request: web.Request) -> web.StreamResponse:
    return not_found(f"{request.method} {request.path} is no address of the data plane").response()
