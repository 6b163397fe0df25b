"""Asks the node's spawner for sandboxes and job supervisors."""

import contextlib
import errno
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self, final

from kernpool_sandbox.kpinit.channel import Channel, close_all
from kernpool_sandbox.kpinit.encoding import encode_job, encode_mounts, encode_sandbox
from kernpool_sandbox.kpinit.errors import GoneError, ProtocolError
from kernpool_sandbox.kpinit.plan import Child, ChildEnded, Ended, JobPlan, Kind, MountOp, SandboxPlan, Spawned
from kernpool_sandbox.kpinit.wire import Frame, Op, Tag, get_str, get_u32, put_str

_UNKNOWN_TEMPLATE: Final = "the template is not known"
_ROW: Final = struct.Struct("<II")


@final
class SpawnerClient:
    """One connection to the spawner. Requests may overlap; each has a deadline (NoAnswerError).

    All methods raise GoneError when the spawner is gone and OSError with the kernel's or the spawner's errno:
    EPERM (a source, cgroup or uid that the spawner was not started with), EEXIST (the id was used before),
    EINVAL (a plan that makes no sense), E2BIG (over the frame of 128 KiB).
    """

    def __init__(self, on_event: Callable[[ChildEnded | Ended], None]) -> None:
        self._on_event = on_event
        self._channel: Channel
        self._privileged = False
        self._state_dir = Path()
        self._templates: dict[str, bytes] = {}
        """Bodies of the DEFINE requests, to be sent again when the spawner has forgotten one."""

    @classmethod
    async def connect(
        cls, path: Path | str, on_event: Callable[[ChildEnded | Ended], None] = lambda _event: None
    ) -> Self:
        """Connect to the spawner at a socket path; raises GoneError when nothing listens there."""
        client = cls(on_event)
        client._channel, hello = await Channel.open(path, client._handle_event)
        close_all(hello.fds)
        values = hello.values()
        if get_u32(values.get(Tag.KIND, b"")) != Kind.SPAWNER:
            client._channel.close()
            raise ProtocolError(f"{path} is not a spawner's socket")
        client._privileged = bool(get_u32(values[Tag.PRIVILEGED]))
        client._state_dir = Path(get_str(values[Tag.STATE_DIR]))
        client._channel.on_gone = lambda: on_event(Ended())
        return client

    @property
    def privileged(self) -> bool:
        """Whether it may map id ranges and idmap layers (CAP_SYS_ADMIN); False: single-id sandboxes only."""
        return self._privileged

    @property
    def state_dir(self) -> Path:
        """Its state directory, as it was given to it."""
        return self._state_dir

    async def define_template(self, template_id: str, ops: tuple[MountOp, ...]) -> None:
        """Send a list of ops once; `spawn(..., template=template_id)` uses it. Redefining replaces it.

        The client remembers it and sends it again when a new spawner, or one that forgot (it keeps 64), asks.
        """
        body = put_str(Tag.TEMPLATE, template_id) + encode_mounts(ops)
        await self._channel.call(Op.DEFINE, body=body)
        self._templates[template_id] = body

    async def spawn(self, sandbox_id: str, plan: SandboxPlan, *, template: str = "") -> Spawned:
        """Make a sandbox. Answered right after the clone: attach to `socket_path`; its hello says it is ready.

        The id must be new (an end record with it must not exist). With a template `plan.ops` must be empty.
        """
        body = encode_sandbox(sandbox_id, plan, template)
        try:
            return await self._spawn(Op.SPAWN, sandbox_id, "s", body)
        except OSError as error:
            if error.errno != errno.ENOENT or error.filename != _UNKNOWN_TEMPLATE or template not in self._templates:
                raise
        await self._channel.call(Op.DEFINE, body=self._templates[template])
        return await self._spawn(Op.SPAWN, sandbox_id, "s", body)

    async def spawn_job(self, job_id: str, plan: JobPlan) -> Spawned:
        """Start a job's supervisor; the id must be new (no directory `j/<id>`)."""
        return await self._spawn(Op.SPAWN_JOB, job_id, "j", encode_job(job_id, plan))

    async def _spawn(self, op: Op, child_id: str, directory: str, body: bytes) -> Spawned:
        frame = await self._channel.call(op, body=body)
        if len(frame.fds) != 1:
            close_all(frame.fds)
            raise ProtocolError(f"a new child came with {len(frame.fds)} descriptors")
        return Spawned(child_id, frame.a, frame.fds[0], str(self._state_dir / directory / f"{child_id}.sock"))

    async def kill(self, child_id: str) -> None:
        """SIGKILL a sandbox's PID 1 (all in it dies) or a job's supervisor and its descendants.

        Also for those that an earlier spawner made. Raises OSError ESRCH for one that does not live.
        """
        await self._channel.call(Op.KILL, body=put_str(Tag.ID, child_id))

    async def list(self) -> list[Child]:
        """List the living children of this spawner (those of an earlier one are found by their sockets)."""
        children: list[Child] = []
        after, more = 0, 1
        while more:
            frame = await self._channel.call(Op.LIST, after)
            after, more = frame.a, frame.b
            for tag, value in frame.all_values():
                if tag == Tag.ROW:
                    kind, pid = _ROW.unpack_from(value)
                    children.append(Child(get_str(value[_ROW.size :]), Kind(kind), pid))
        return children

    async def ping(self) -> None:
        """Return when the spawner answers."""
        await self._channel.call(Op.PING)

    async def stop(self) -> None:
        """Make the spawner exit; what it made lives on."""
        with contextlib.suppress(GoneError):
            await self._channel.call(Op.STOP)

    def close(self) -> None:
        """Close the connection; the spawner and its children live on."""
        self._channel.close()

    def _handle_event(self, frame: Frame) -> None:
        close_all(frame.fds)
        if frame.op == Op.CHILD_ENDED:
            self._on_event(ChildEnded(get_str(frame.values()[Tag.ID]), Kind(frame.a), frame.b))
