"""The errors of talking to kp-init."""

from typing import final


class KpInitError(Exception):
    """Base of all errors of this package; what the kernel refused inside is an OSError instead."""


@final
class ProtocolError(KpInitError):
    """The other side broke the protocol, or speaks none that this version knows."""


@final
class GoneError(KpInitError):
    """The other side is gone (or never was): its socket closed or nothing listens on it."""


@final
class SetupError(KpInitError):
    """A sandbox died while it was being made; the message names the step and the kernel's reason."""


@final
class NoAnswerError(KpInitError):
    """The other side is alive but did not answer within the deadline (frozen, or starved of CPU)."""


@final
class BuildError(KpInitError):
    """The C program could not be built; the message holds the compiler's output."""
