"""Error answers of the data plane: a status and the JSON body Problem {code, message, hint}."""

import json
from typing import final

from aiohttp import web


@final
class ProblemError(Exception):
    """A request is refused or failed; becomes the HTTP answer with this status."""

    def __init__(self, status: int, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.hint = hint

    def body(self) -> dict[str, str]:
        """Give the JSON object that people and clients read."""
        return {"code": self.code, "message": self.message, "hint": self.hint}

    def response(self) -> web.Response:
        """Give the HTTP answer."""
        response = web.Response(
            status=self.status, body=json.dumps(self.body()).encode(), content_type="application/problem+json"
        )
        if self.status == 401:
            response.headers["WWW-Authenticate"] = "Bearer"
        if self.status == 503:
            response.headers["Retry-After"] = "1"
        return response


def invalid(message: str, hint: str = "") -> ProblemError:
    """The request's own content is wrong."""
    return ProblemError(400, "invalid", message, hint)


def unauthenticated(message: str) -> ProblemError:
    """Nobody we know: no token, or one that must not be honoured."""
    return ProblemError(401, "unauthenticated", message, "ask the coordinator for a new data token (POST .../access)")


def forbidden(message: str) -> ProblemError:
    """Known, but not for this."""
    return ProblemError(403, "forbidden", message)


def not_found(message: str, hint: str = "") -> ProblemError:
    """There is no such thing here."""
    return ProblemError(404, "not_found", message, hint)


def too_large(message: str) -> ProblemError:
    """More bytes than this request may carry."""
    return ProblemError(413, "too_large", message)


def busy(message: str) -> ProblemError:
    """A limit of this node is reached for the moment."""
    return ProblemError(503, "busy", message, "try again in a moment")
