"""Every error the coordinator raises across its rooms: each carries what a Problem body needs.

A message says what happened and to what; the hint is the next command or step. Foreign errors are translated into
these where they enter (the store, the link), so that no handler needs to know SQLAlchemy or asyncio.
"""

from typing import Any, ClassVar


class CoordinatorError(Exception):
    """Base of all; `code` and `status` are what the HTTP API answers."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500

    def __init__(self, message: str, *, hint: str = "", details: list[dict[str, Any]] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details or []

    def problem(self) -> dict[str, Any]:
        """The error as a Problem body (bodies.Problem), ready to be sent."""
        return {"code": self.code, "message": self.message, "hint": self.hint, "details": self.details}


class InvalidError(CoordinatorError):
    """The request itself is wrong; nothing was created."""

    code = "invalid"
    status = 400


class UnauthenticatedError(CoordinatorError):
    """No token, or one that we do not know."""

    code = "unauthenticated"
    status = 401


class ForbiddenError(CoordinatorError):
    """The actor is known and may not do this."""

    code = "forbidden"
    status = 403


class NotFoundError(CoordinatorError):
    """Nothing of that name that the actor may see."""

    code = "not_found"
    status = 404


class ConflictError(CoordinatorError):
    """The state of things does not allow it now; the message says which state."""

    code = "conflict"
    status = 409


class PendingError(ConflictError):
    """A retried idempotency key whose first outcome is not known yet: never a second create."""

    code = "pending"


class TooLargeError(CoordinatorError):
    """Over a limit that the message names."""

    code = "too_large"
    status = 413


class NoCapacityError(CoordinatorError):
    """No node can take it now."""

    code = "no_capacity"
    status = 503


class UnreachableError(CoordinatorError):
    """The node that has it is not linked."""

    code = "unreachable"
    status = 503


class BusyError(CoordinatorError):
    """A bounded queue is full; nothing was done, try again."""

    code = "busy"
    status = 503


class StoreError(CoordinatorError):
    """The store refused a write (full disk, lost database); nothing of that request is kept."""

    code = "store"
    status = 503


class NodeTimeoutError(CoordinatorError):
    """A node is linked and did not answer within the deadline; what it did is not known yet."""

    code = "timeout"
    status = 504


class NodeRefusedError(CoordinatorError):
    """The node answered that it will not; the message is its own sentence."""

    code = "refused"
    status = 409
