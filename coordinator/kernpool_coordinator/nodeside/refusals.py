"""Translates what the identity room refuses into answers: its sentence and code, with an HTTP status."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, final

from kernpool_coordinator.errors import CoordinatorError
from kernpool_tls.errors import (
    ClockSkewError,
    IdentityError,
    JoinTokenMalformedError,
    RateLimitedError,
    RequestRefusedError,
)

_STATUS: Final[Mapping[type[IdentityError], int]] = {
    ClockSkewError: 400,
    JoinTokenMalformedError: 400,
    RequestRefusedError: 400,
    RateLimitedError: 429,
}


@final
class IdentityRefusedError(CoordinatorError):
    """A node that is not let in; its code is that of the identity room."""

    code = "forbidden"
    status = 403

    def __init__(self, error: IdentityError) -> None:
        super().__init__(f"{str(error)[:1].upper()}{str(error)[1:]}.")
        self.status = _STATUS.get(type(error), 403)  # type: ignore[misc]
        self._code = error.code

    def problem(self) -> dict[str, Any]:
        """With the code that says which rule refused it."""
        return {**super().problem(), "code": self._code}


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise IdentityRefusedError for every error of the identity room."""
    try:
        yield
    except IdentityError as error:
        raise IdentityRefusedError(error) from error
