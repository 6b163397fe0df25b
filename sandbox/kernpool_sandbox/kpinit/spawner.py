"""Asks the node's spawner for sandboxes and job supervisors."""

from collections.abc import Callable
from pathlib import Path
from typing import Self, final

from kernpool_sandbox.kpinit.plan import Child, ChildEnded, Ended, JobPlan, MountOp, SandboxPlan, Spawned


@final
class SpawnerClient:
    """One connection to the spawner. Requests may overlap; each has a deadline (NoAnswerError).

    All methods raise GoneError when the spawner is gone and OSError with the kernel's or the spawner's errno:
    EPERM (a source, cgroup or uid that the spawner was not started with), EEXIST (the id was used before),
    EINVAL (a plan that makes no sense), E2BIG (over the frame of 128 KiB).
    """

    @classmethod
    async def connect(
        cls, path: Path | str, on_event: Callable[[ChildEnded | Ended], None] = lambda _event: None
    ) -> Self:
        """Connect to the spawner at a socket path; raises GoneError when nothing listens there."""
        raise NotImplementedError

    @property
    def privileged(self) -> bool:
        """Whether it may map id ranges and idmap layers (CAP_SYS_ADMIN); False: single-id sandboxes only."""
        raise NotImplementedError

    @property
    def state_dir(self) -> Path:
        """Its state directory, as it was given to it."""
        raise NotImplementedError

    async def define_template(self, template_id: str, ops: tuple[MountOp, ...]) -> None:
        """Send a list of ops once; `spawn(..., template=template_id)` uses it. Redefining replaces it.

        The client remembers it and sends it again when a new spawner, or one that forgot (it keeps 64), asks.
        """
        raise NotImplementedError

    async def spawn(self, sandbox_id: str, plan: SandboxPlan, *, template: str = "") -> Spawned:
        """Make a sandbox. Answered right after the clone: attach to `socket_path`; its hello says it is ready.

        The id must be new (an end record with it must not exist). With a template `plan.ops` must be empty.
        """
        raise NotImplementedError

    async def spawn_job(self, job_id: str, plan: JobPlan) -> Spawned:
        """Start a job's supervisor; the id must be new (no directory `j/<id>`)."""
        raise NotImplementedError

    async def kill(self, child_id: str) -> None:
        """SIGKILL a sandbox's PID 1 (all in it dies) or a job's supervisor and its descendants.

        Also for those that an earlier spawner made. Raises OSError ESRCH for one that does not live.
        """
        raise NotImplementedError

    async def list(self) -> list[Child]:
        """List the living children of this spawner (those of an earlier one are found by their sockets)."""
        raise NotImplementedError

    async def ping(self) -> None:
        """Return when the spawner answers."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Make the spawner exit; what it made lives on."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connection; the spawner and its children live on."""
        raise NotImplementedError
