"""The listener that agents dial: enrolment, renewal and links; what is refused is refused with a Problem."""

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, final

from aiohttp.web import BaseRequest, HTTPException, Response, StreamResponse
from aiohttp.web_protocol import RequestPayloadError
from pydantic_core import to_json

from kernpool_coordinator.core.control import ControlPlane
from kernpool_coordinator.errors import CoordinatorError, NotFoundError
from kernpool_coordinator.http import body, checks, problems
from kernpool_coordinator.http.limits import RateLimit
from kernpool_coordinator.nodeside.bodies import EnrolRequest, RenewRequest
from kernpool_coordinator.nodeside.issue import Issuer, Renewal
from kernpool_coordinator.nodeside.link import LinkServer
from kernpool_coordinator.nodeside.refusals import translated
from kernpool_tls.authority import Issued
from kernpool_tls.names import Role
from kernpool_tls.peer import Revocations, require_peer

log = logging.getLogger("kernpool.enrol")

BODY_BYTES_MAX: Final = 64 * 1024
BODY_WAIT_S: Final = 10.0

Handler = Callable[[BaseRequest], Awaitable[StreamResponse]]


@final
class NodeServer:
    """Handles every request of the node listener."""

    def __init__(self, core: ControlPlane, issuer: Issuer, links: LinkServer, *, tries_per_min: int) -> None:
        self._core = core
        self._issuer = issuer
        self._links = links
        self._tries = RateLimit(tries_per_min, clock=time.monotonic)
        self._routes: dict[tuple[str, str], Handler] = {
            ("POST", "/node/v1/enrol"): self._enrol,
            ("GET", "/node/v1/nonce"): self._nonce,
            ("POST", "/node/v1/renew"): self._renew,
            ("GET", "/node/v1/link"): self._link,
        }

    async def handle(self, request: BaseRequest) -> StreamResponse:
        """Answer `request`."""
        try:
            return await self._route(request)(request)
        except CoordinatorError as error:
            log.warning("%s %s from %s refused: %s", request.method, request.path, request.remote, error.message)
            return problems.response(error)
        except HTTPException as error:
            return problems.of_http(error)
        except RequestPayloadError as error:
            raise ConnectionResetError("the body was cut") from error
        except ConnectionError:
            raise
        except Exception as error:
            log.exception("%s %s failed", request.method, request.path)
            if request.writer.output_size > 0:
                raise ConnectionResetError("the answer had begun") from error
            return problems.internal()

    def _route(self, request: BaseRequest) -> Handler:
        handler = self._routes.get((request.method, request.path))
        if handler is not None:
            return handler
        allowed = [method for method, path in self._routes if path == request.path]
        if allowed:
            raise problems.MethodError(f"{request.method[:20]} is not possible here, only {allowed[0]}.")
        raise NotFoundError("There is nothing here for agents.", hint="People and programs use the API's own address.")

    async def _enrol(self, request: BaseRequest) -> StreamResponse:
        self._count_try(request)
        asked = checks.parse_body(EnrolRequest, await _body(request))
        node, issued = await self._issuer.enrol(
            asked.token,
            asked.csr_pem.encode(),
            hostname=asked.hostname,
            agent_version=asked.agent_version,
            unix_s=asked.unix_s,
        )
        return self._issued(issued, {"node_id": node.node_id, "cluster_id": self._issuer.cluster_id, "pool": node.pool})

    async def _nonce(self, request: BaseRequest) -> StreamResponse:
        self._count_try(request)
        return _json({"nonce": self._issuer.nonce()})

    async def _renew(self, request: BaseRequest) -> StreamResponse:
        self._count_try(request)
        asked = checks.parse_body(RenewRequest, await _body(request))
        renewal = Renewal(asked.certificate_pem.encode(), asked.csr_pem.encode(), asked.nonce, asked.signature)
        return self._issued(await self._issuer.renew_expired(renewal), {})

    async def _link(self, request: BaseRequest) -> StreamResponse:
        with translated():
            peer = require_peer(request, cluster_id=self._issuer.cluster_id, role=Role.NODE, revocations=Revocations())
        self._core.check_certificate(peer.node_id, peer.serial)
        return await self._links.serve(request, peer)

    def _count_try(self, request: BaseRequest) -> None:
        if not self._tries.take(request.remote or ""):
            raise problems.RateError(
                "Too many enrolments and renewals from this address.", hint="Try again in a minute."
            )

    def _issued(self, issued: Issued, extra: dict[str, Any]) -> Response:
        return _json(
            {"certificate_pem": issued.certificate_pem.decode(), "ca_pem": self._issuer.ca_pem.decode(), **extra}
        )


async def _body(request: BaseRequest) -> bytes:
    return await body.read(request, bytes_max=BODY_BYTES_MAX, wait_s=BODY_WAIT_S)


def _json(document: dict[str, Any]) -> Response:
    return Response(body=to_json(document), headers={"Content-Type": "application/json", "Cache-Control": "no-store"})
