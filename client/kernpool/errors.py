"""Every error that the SDK raises: what happened, to what, and the next command to type."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from kernpool.results import CommandResult


class KernpoolError(Exception):
    """Base of all; `str()` gives the message and the hint."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        """What happened, and to what."""
        self.hint = hint
        """What to do next, often a command; may be empty."""

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class ApiError(KernpoolError):
    """The coordinator or the node refused, and says why."""

    CODE: ClassVar[str] = ""

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        code: str = "internal",
        status: int = 0,
        details: Sequence[dict[str, Any]] = (),
    ) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        """Machine-readable: invalid, not_found, conflict, no_capacity, unreachable, ..."""
        self.status = status
        """HTTP status; 0 when the error came as an item of a bulk answer."""
        self.details = list(details)
        """For `invalid`: {line, column, key, message} each."""


class InvalidError(ApiError):
    """The request itself is wrong; nothing was created."""

    CODE = "invalid"


class AuthError(ApiError):
    """The token is missing, unknown, or may not do this."""

    CODE = "unauthenticated"


class ForbiddenError(AuthError):
    """The token is good but may not do this."""

    CODE = "forbidden"


class NotFoundError(ApiError):
    """There is nothing of that name."""

    CODE = "not_found"


class ConflictError(ApiError):
    """The state of things does not allow it now."""

    CODE = "conflict"


class NoCapacityError(ApiError):
    """No node can take it now."""

    CODE = "no_capacity"


KINDS: dict[str, type[ApiError]] = {
    kind.CODE: kind for kind in (InvalidError, AuthError, ForbiddenError, NotFoundError, ConflictError, NoCapacityError)
}


def api_error(
    code: str, message: str, *, hint: str = "", status: int = 0, details: Sequence[dict[str, Any]] = ()
) -> ApiError:
    """Make the ApiError whose class tells its code."""
    kind = KINDS.get(code, ApiError)
    return kind(message, hint=hint, code=code, status=status, details=details)


class UnreachableError(KernpoolError):
    """There is no connection, or it broke and the call may not be repeated."""


class NotRunningError(UnreachableError):
    """No coordinator runs on this machine, and none is named."""


class ProtocolError(KernpoolError):
    """The other side answered something that this version does not understand."""


class CutError(UnreachableError):
    """A bulk answer or an output ended before its end; `.items` holds what came."""

    def __init__(self, message: str, *, hint: str = "", items: Sequence[Any] = ()) -> None:
        super().__init__(message, hint=hint)
        self.items = list(items)


class StartError(KernpoolError):
    """The coordinator or the agent of this machine could not be started or stopped."""


class CommandFailedError(KernpoolError):
    """A command that had to succeed did not exit with 0."""

    def __init__(self, result: "CommandResult", argv: Sequence[str]) -> None:
        name = argv[0] if argv else "the command"
        how = f"exited with {result.exit_code}" if result.reason == "exited" else f"ended by {result.reason}"
        tail = result.stderr_text.strip()[-500:]
        super().__init__(f"{name}: {how}{f': {tail}' if tail else ''}")
        self.result = result
