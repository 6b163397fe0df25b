"""Errors of the agent: what happened, to what, and what to do next."""

from pathlib import Path
from typing import final


class AgentError(Exception):
    """Base of all errors the agent raises on purpose; the text is shown to people as it is."""


class FatalError(AgentError):
    """The agent cannot go on and a restart alone will not help: a person has to change something."""


@final
class ConfigError(FatalError):
    """A setting is unknown, malformed or missing."""


@final
class StateDirBusyError(FatalError):
    """Another agent holds the state directory."""

    def __init__(self, path: Path, pid: str) -> None:
        super().__init__(
            f"the state directory {path} is held by the agent with pid {pid or 'unknown'}; "
            "stop that one first (kp-agent stop), or give this one another --state-dir"
        )
        self.pid = int(pid) if pid.isdecimal() else None
        """The holder's pid; None when it has not written it yet."""


@final
class EnrolRefusedError(FatalError):
    """The coordinator, or our own check of the coordinator, says no to this node."""


@final
class UnreachableError(AgentError):
    """The coordinator did not answer; trying again later may help."""


@final
class LinkRefusedError(AgentError):
    """The coordinator answered but does not let this node link."""


@final
class RefusedError(AgentError):
    """A request of the coordinator is refused; `code` is the machine-readable name that travels in the Reply."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class JournalError(AgentError):
    """The journal cannot be read or written."""


@final
class DiskFullError(JournalError):
    """The journal's disk is full: what was to be written is not on disk, and nothing may start because of it."""


@final
class TransitionError(AgentError):
    """A state machine was asked for a step it does not have: a bug, told with the history."""


@final
class GpuError(AgentError):
    """The GPU worker could not answer."""


@final
class SpawnerError(FatalError):
    """No spawner runs and none could be started."""
