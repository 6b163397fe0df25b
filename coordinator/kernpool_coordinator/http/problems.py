"""Error answers: every failure, ours or aiohttp's, becomes a Problem body with a code, a sentence and a next step."""

import http
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from aiohttp.web import HTTPException, Response
from pydantic_core import to_json

from kernpool_coordinator.errors import CoordinatorError


class MethodError(CoordinatorError):
    """The path is right, the method is not."""

    code = "method_not_allowed"
    status = 405


class DeadlineError(CoordinatorError):
    """The request was not done in time; what it did is not known."""

    code = "timeout"
    status = 504


class SlowBodyError(CoordinatorError):
    """The client did not send its body in time."""

    code = "timeout"
    status = 408


class NodeAnswerError(CoordinatorError):
    """A node's data plane cut its answer or spoke no HTTP."""

    code = "bad_gateway"
    status = 502


class RateError(CoordinatorError):
    """Too many requests of that kind."""

    code = "rate_limited"
    status = 429
    retry_after_s: ClassVar[int] = 5


_CODES: Final[Mapping[int, str]] = {
    400: "invalid",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "timeout",
    413: "too_large",
    426: "invalid",
}


def response(error: CoordinatorError, headers: Mapping[str, str] | None = None) -> Response:
    """The HTTP answer for one of our errors."""
    extra = dict(headers or {})
    match error.status:
        case 401:
            extra["WWW-Authenticate"] = 'Bearer realm="kernpool"'
        case 429 | 503:
            extra["Retry-After"] = "5" if error.status == 429 else "1"
    return _answer(error.status, error.problem(), extra)


def of_http(error: HTTPException) -> Response:
    """The answer for an error that aiohttp raised by itself (a bad WebSocket handshake, a body over its limit)."""
    text = " ".join((error.text or error.reason).split())
    return _answer(error.status, _problem(_CODES.get(error.status, "invalid"), f"{text.rstrip('.')}."), {})


def malformed(status: int, why: str) -> Response:
    """The answer to bytes that are no HTTP request; the connection is closed after it."""
    # The parser's message quotes what was sent over several lines with a caret below; its first line says it all.
    first = why.strip().splitlines()[0][:120].rstrip(":.") if why.strip() else http.HTTPStatus(status).phrase
    answer = _answer(status, _problem(_CODES.get(status, "invalid"), f"This is not a valid HTTP request: {first}."), {})
    answer.force_close()
    return answer


def internal() -> Response:
    """The answer when our own code failed; the log has the traceback."""
    message = "The coordinator failed at this request; what it did is not known."
    hint = "Look for the traceback in the coordinator's log and report it, with the request, as a bug."
    return _answer(500, _problem("internal", message, hint), {})


def _problem(code: str, message: str, hint: str = "") -> dict[str, Any]:
    return {"code": code, "message": message, "hint": hint, "details": []}


def _answer(status: int, problem: dict[str, Any], headers: dict[str, str]) -> Response:
    # Errors echo what was sent: nosniff keeps a browser from taking that for a page.
    headers["X-Content-Type-Options"] = "nosniff"
    return Response(status=status, body=to_json(problem), content_type="application/json", headers=headers)
