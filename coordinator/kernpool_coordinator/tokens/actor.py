"""Who acts: the authenticated caller that every change names."""

from dataclasses import dataclass
from enum import StrEnum
from typing import final


class Role(StrEnum):
    """What a token may do at most."""

    ADMIN = "admin"
    """Everything, in every workspace."""
    USER = "user"
    """Work in its own workspace; sees nodes, changes none."""
    VIEWER = "viewer"
    """Sees its own workspace, changes nothing."""


class Verb(StrEnum):
    """What an actor wants to do to an object."""

    VIEW = "view"
    """List or show."""
    CREATE = "create"
    """Make a new one."""
    CHANGE = "change"
    """Cancel, extend, set."""
    REMOVE = "remove"
    """Delete, down, revoke."""
    LOGS = "logs"
    """Read a job's log."""
    EXEC = "exec"
    """Run commands in, read and write files of, connect to ports of a sandbox."""


@final
@dataclass(frozen=True, slots=True)
class Actor:
    """The authenticated caller."""

    name: str
    role: Role
    workspace: str
    token_id: str = ""

    @property
    def is_admin(self) -> bool:
        """True: no workspace limits it."""
        return self.role is Role.ADMIN


SYSTEM = Actor(name="system", role=Role.ADMIN, workspace="default")
"""The coordinator itself, as events name it."""
