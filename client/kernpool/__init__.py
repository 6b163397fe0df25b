"""Kernpool: run AI jobs and millisecond sandboxes on any machine you can reach.

Every name is imported when it is first used (PEP 562): `import kernpool` costs next to nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernpool import aio as aio
    from kernpool import sandboxes as sandboxes
    from kernpool.errors import ApiError as ApiError
    from kernpool.errors import AuthError as AuthError
    from kernpool.errors import CommandFailedError as CommandFailedError
    from kernpool.errors import ConflictError as ConflictError
    from kernpool.errors import CutError as CutError
    from kernpool.errors import InvalidError as InvalidError
    from kernpool.errors import KernpoolError as KernpoolError
    from kernpool.errors import NoCapacityError as NoCapacityError
    from kernpool.errors import NotFoundError as NotFoundError
    from kernpool.errors import NotRunningError as NotRunningError
    from kernpool.errors import ProtocolError as ProtocolError
    from kernpool.errors import StartError as StartError
    from kernpool.errors import UnreachableError as UnreachableError
    from kernpool.results import CommandResult as CommandResult
    from kernpool.results import Created as Created
    from kernpool.results import JobInfo as JobInfo
    from kernpool.results import Limits as Limits
    from kernpool.results import NodeInfo as NodeInfo
    from kernpool.results import Pool as Pool
    from kernpool.results import SandboxInfo as SandboxInfo
    from kernpool.results import Template as Template
    from kernpool.sdk import Batch as Batch
    from kernpool.sdk import Client as Client
    from kernpool.sdk import Job as Job
    from kernpool.sdk import Sandbox as Sandbox
    from kernpool.sdk import exec as exec  # noqa: A004 - the command's own name
    from kernpool.sdk import job as job
    from kernpool.sdk import launch as launch
    from kernpool.spec import SpecError as SpecError
    from kernpool.spec import Task as Task

__version__ = "0.1.0"

_MODULES = {"aio", "sandboxes"}
_HOMES = {
    "kernpool.errors": (
        "ApiError", "AuthError", "CommandFailedError", "ConflictError", "CutError", "InvalidError", "KernpoolError",
        "NoCapacityError", "NotFoundError", "NotRunningError", "ProtocolError", "StartError", "UnreachableError",
    ),
    "kernpool.results": (
        "CommandResult", "Created", "JobInfo", "Limits", "NodeInfo", "Pool", "SandboxInfo", "Template",
    ),
    "kernpool.sdk": ("Batch", "Client", "Job", "Sandbox", "exec", "job", "launch"),
    "kernpool.spec": ("SpecError", "Task"),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", *sorted(_MODULES), *sorted(_HOME_OF)]  # noqa: PLE0604 - all are texts


def __getattr__(name: str) -> Any:
    """Import a public name from where it lives."""
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"kernpool.{name}")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'kernpool' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, also those not imported yet."""
    return sorted(__all__)
