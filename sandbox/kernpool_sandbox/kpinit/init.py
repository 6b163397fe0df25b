"""Drives the PID 1 of one sandbox."""

import asyncio
import contextlib
import dataclasses
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self, final

from kernpool_sandbox.kpinit.channel import Channel, close_all, failure, wait_fd
from kernpool_sandbox.kpinit.encoding import decode_rows, decode_streams, decode_usage, encode_exec, encode_file
from kernpool_sandbox.kpinit.errors import GoneError, ProtocolError, SetupError
from kernpool_sandbox.kpinit.hello import decode_hello
from kernpool_sandbox.kpinit.plan import (
    Ended,
    ExecCause,
    ExecExited,
    ExecRow,
    ExecSpec,
    ExecStarted,
    FileSpec,
    Hello,
    InitEvent,
    Kind,
    Reattached,
    Stream,
)
from kernpool_sandbox.kpinit.record import EndCause, parse_end_record
from kernpool_sandbox.kpinit.wire import Frame, Op, Tag, get_u32, put_bytes, put_env, put_str, put_u32, put_u64

_SIGNAL_TREE: Final = 1
_EXITED_DISK_FULL: Final = 1
_STREAM_HAS_FD: Final = 1
_STREAM_HAS_KEPT: Final = 2
_GONE_DEADLINE_S: Final = 10.0


def _decode_event(frame: Frame) -> ExecExited | None:
    close_all(frame.fds)
    if frame.op != Op.EXEC_EXITED:
        return None  # of a later protocol: hints may be ignored
    values = frame.values()
    full = Tag.FLAGS in values and bool(get_u32(values[Tag.FLAGS]) & _EXITED_DISK_FULL)
    return ExecExited(frame.a, frame.b, ExecCause(get_u32(values[Tag.CAUSE])), decode_usage(values[Tag.USAGE]), full)


def _why_it_died(path: Path, otherwise: GoneError) -> Exception:
    """Look into the end record beside the socket."""
    try:
        record = parse_end_record(path.with_suffix(".end").read_text(errors="replace"))
    except (OSError, ValueError):
        return otherwise
    if record is None:
        return otherwise
    if record.cause is EndCause.SETUP_FAILED:
        return SetupError(f"the sandbox {path.stem} could not be made: {record.detail}")
    return GoneError(f"the sandbox {path.stem} has ended: {record.cause} {record.detail}".rstrip())


def _take_stream(flags: int, kept: int, dropped: int, drained: int, fds: list[int]) -> Stream:
    fd = fds.pop(0) if flags & _STREAM_HAS_FD else -1
    data = b""
    if flags & _STREAM_HAS_KEPT:
        with os.fdopen(fds.pop(0), "rb") as memory:
            data = memory.read(kept)
    return Stream(fd, data, dropped, drained)


@final
class InitClient:
    """One connection to a sandbox's PID 1. The newest connection wins: an older one gets `Ended`.

    Requests may overlap; each has a deadline (NoAnswerError) and raises GoneError when the sandbox is gone and OSError
    with the errno of what failed inside.
    """

    def __init__(self, path: Path, on_event: Callable[[InitEvent], None]) -> None:
        self._path = path
        self._on_event = on_event
        self._channel: Channel
        self.hello: Hello
        """What PID 1 said on attach."""

    @classmethod
    async def attach(
        cls,
        path: Path | str,
        on_event: Callable[[InitEvent], None] = lambda _event: None,
        *,
        timeout_s: float = 10.0,
    ) -> Self:
        """Connect and wait for the hello, which comes when the sandbox is ready.

        Raises GoneError when nothing listens or it dies meanwhile (SetupError when its end record says that the setup
        failed), NoAnswerError after the timeout. `on_event` is called in the event loop.
        """
        client = cls(Path(path), on_event)
        try:
            client._channel, hello = await Channel.open(path, client._handle_event, timeout_s)
        except GoneError as error:
            raise _why_it_died(client._path, error) from error
        client.hello = decode_hello(hello, Kind.SANDBOX)
        client._channel.on_gone = lambda: on_event(Ended())
        return client

    async def claim(
        self,
        token: str,
        *,
        ttl_s: float,
        hostname: str = "",
        env: Mapping[str, str] | None = None,
        entropy: bytes = b"",
    ) -> None:
        """Hand the sandbox out: from now on it lives for ttl_s, whoever else dies.

        Idempotent for the same token (then only the ttl is set anew); OSError EBUSY for another. `entropy` of at least
        16 bytes makes a new /etc/machine-id where the plan has one.
        """
        body = [put_str(Tag.TOKEN, token), put_u64(Tag.TTL_MS, max(1, round(ttl_s * 1000)))]
        if hostname:
            body.append(put_str(Tag.HOSTNAME, hostname))
        if env:
            body.append(put_env(env))
        if entropy:
            body.append(put_bytes(Tag.ENTROPY, entropy))
        await self._channel.call(Op.CLAIM, body=b"".join(body))

    async def extend(self, ttl_s: float) -> None:
        """Set the time to live anew, counted from now; OSError EINVAL when not claimed."""
        await self._channel.call(Op.EXTEND, body=put_u64(Tag.TTL_MS, max(1, round(ttl_s * 1000))))

    async def exec(self, spec: ExecSpec) -> ExecStarted:
        """Start a command. OSError with errno and what failed: ENOENT, EACCES, ENOEXEC (argv[0] or cwd), EINVAL (no
        such user), EEXIST (the exec id is in use), EAGAIN (too many execs or processes).
        """
        frame = await self._channel.call(Op.EXEC, spec.exec_id, body=encode_exec(spec))
        if len(frame.fds) != 2 + spec.stdin:
            close_all(frame.fds)
            raise ProtocolError(f"an exec came with {len(frame.fds)} descriptors")
        stdout_fd, stderr_fd, *stdin_fd = frame.fds
        return ExecStarted(spec.exec_id, frame.a, stdin_fd[0] if stdin_fd else -1, stdout_fd, stderr_fd)

    async def signal(self, exec_id: int, sig: int, *, tree: bool = False) -> None:
        """Send a signal to an exec's leader, or (tree) to all its descendants; SIGKILL with tree repeats until none is
        left. OSError ESRCH when there is no such exec or no process of it lives.
        """
        body = put_u32(Tag.FLAGS, _SIGNAL_TREE) if tree else b""
        await self._channel.call(Op.SIGNAL, exec_id, sig, body)

    async def list(self) -> list[ExecRow]:
        """List the execs that are not acknowledged: the truth about exits."""
        return decode_rows(await self._channel.call(Op.LIST))

    async def ack(self, exec_id: int) -> None:
        """Forget an ended exec and free its pipes; output of background processes is read and dropped from now on.

        OSError EBUSY while its leader runs, ENOENT for an unknown one.
        """
        await self._channel.call(Op.ACK, exec_id)

    async def reattach(self, exec_id: int) -> Reattached:
        """Take over the streams of an exec that an earlier agent started; the caller is their only reader now."""
        frame = await self._channel.call(Op.REATTACH, exec_id)
        streams = [_take_stream(*stream, frame.fds) for stream in decode_streams(frame)]
        return Reattached(exec_id, streams[0], streams[1])

    async def file(self, spec: FileSpec, data_fd: int = -1) -> int:
        """Do one file operation by a helper inside the sandbox, as spec.user, and return the bytes moved.

        READ, LIST and STAT write to `data_fd`, WRITE reads from it until end-of-file: a pipe or socket whose other end
        the caller serves meanwhile; the caller closes both (kpinit.files does all this). OSError: ENOENT, EACCES,
        EISDIR, EINVAL (not a regular file), ETIMEDOUT (no progress within the deadline), ...
        """
        frame = await self.start_file(spec, data_fd)
        if frame.a < 0:
            raise failure(frame)
        return int.from_bytes(frame.values().get(Tag.MOVED, b""), "little")

    def start_file(self, spec: FileSpec, data_fd: int = -1) -> asyncio.Future[Frame]:
        """Send a file operation and return the future of its raw answer: the caller may close `data_fd` at once."""
        fds: Sequence[int] = (data_fd,) if data_fd >= 0 else ()
        return self._channel.request(Op.FILE, spec.op, body=encode_file(spec), fds=fds)

    async def connect(self, port: int, host: str = "127.0.0.1") -> socket.socket:
        """Open a TCP connection inside the sandbox's network; returns it connected and non-blocking.

        OSError: ECONNREFUSED, ENETUNREACH, ...
        """
        frame = await self._channel.call(Op.CONNECT, port, body=put_str(Tag.PATH, host))
        if len(frame.fds) != 1:
            close_all(frame.fds)
            raise ProtocolError(f"a connection came with {len(frame.fds)} descriptors")
        sock = socket.socket(fileno=frame.fds[0])
        try:
            await wait_fd(sock.fileno(), writable=True, what=f"a connection to {host}:{port} inside")
            error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                raise OSError(error, os.strerror(error), f"{host}:{port} inside the sandbox")
        except BaseException:
            sock.close()
            raise
        sock.settimeout(0)
        return sock

    async def ping(self) -> None:
        """Return when PID 1 answers."""
        await self._channel.call(Op.PING)

    async def shutdown(self) -> None:
        """End the sandbox with all in it; returns when its PID 1 is gone (its end record says `shutdown`)."""
        with contextlib.suppress(GoneError):  # that is what was asked for
            await self._channel.call(Op.SHUTDOWN)
        if self.hello.pidfd >= 0:
            await wait_fd(self.hello.pidfd, timeout_s=_GONE_DEADLINE_S, what=f"the end of {self.hello.id}")

    def close(self) -> None:
        """Detach: everything goes on, output is kept in rings; unclaimed it ends after 30 s."""
        self._channel.close()
        if self.hello.pidfd >= 0:
            os.close(self.hello.pidfd)
            self.hello = dataclasses.replace(self.hello, pidfd=-1)

    def _handle_event(self, frame: Frame) -> None:
        event = _decode_event(frame)
        if event is not None:
            self._on_event(event)
