"""What can go wrong with sandboxes on a node, as exceptions whose messages say what to do next."""

from typing import ClassVar

from kernpool_mesh.reasons import EndReason


class SandboxError(Exception):
    """Base of this room's errors; `code` is the machine-readable name that travels in answers."""

    code: ClassVar[str] = "internal"


class SandboxNotFoundError(SandboxError):
    """No sandbox of this id is or was lately on this node."""

    code = "not_found"


class SandboxEndedError(SandboxError):
    """The sandbox is over; `reason` and `detail` say how it ended."""

    code = "ended"

    def __init__(self, message: str, reason: EndReason, detail: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.detail = detail


class TemplateError(SandboxError):
    """The template asks for what this node, or any node, cannot give."""

    code = "invalid"


class ImageError(SandboxError):
    """The image cannot be found, read or unpacked."""

    code = "image_failed"


class NoCapacityError(SandboxError):
    """The node holds as many sandboxes as its owner, or its uid ranges, allow."""

    code = "no_capacity"


class StartError(SandboxError):
    """The kernel, the spawner or the new sandbox's PID 1 refused."""

    code = "start_failed"


class IsolationError(SandboxError):
    """This node cannot isolate sandboxes; the message lists why."""

    code = "refused"


class JournalFullError(SandboxError):
    """The disk under the journal takes no more records, so nothing new is made."""

    code = "disk_full"


class StateBusyError(SandboxError):
    """Another process holds this state directory."""

    code = "busy"


class FileError(SandboxError):
    """A file inside a sandbox could not be read, written or listed; `errno` is the sandbox's."""

    code = "file"

    def __init__(self, message: str, errno: int) -> None:
        super().__init__(message)
        self.errno = errno


class IllegalTransitionError(RuntimeError):
    """A state machine got an event that its state cannot have: a fault of ours, told with the machine's history."""
