"""Drives the PID 1 of one sandbox."""

import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self, final

from kernpool_sandbox.kpinit.plan import (
    ExecRow,
    ExecSpec,
    ExecStarted,
    FileSpec,
    Hello,
    InitEvent,
    Reattached,
)


@final
class InitClient:
    """One connection to a sandbox's PID 1. The newest connection wins: an older one gets `Ended`.

    Requests may overlap; each has a deadline (NoAnswerError) and raises GoneError when the sandbox is gone and OSError
    with the errno of what failed inside.
    """

    hello: Hello
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
        raise NotImplementedError

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
        raise NotImplementedError

    async def extend(self, ttl_s: float) -> None:
        """Set the time to live anew, counted from now; OSError EINVAL when not claimed."""
        raise NotImplementedError

    async def exec(self, spec: ExecSpec) -> ExecStarted:
        """Start a command. OSError with errno and what failed: ENOENT, EACCES, ENOEXEC (argv[0] or cwd), EINVAL (no
        such user), EEXIST (the exec id is in use), EAGAIN (too many execs or processes).
        """
        raise NotImplementedError

    async def signal(self, exec_id: int, sig: int, *, tree: bool = False) -> None:
        """Send a signal to an exec's leader, or (tree) to all its descendants; SIGKILL with tree repeats until none is
        left. OSError ESRCH when there is no such exec or no process of it lives.
        """
        raise NotImplementedError

    async def list(self) -> list[ExecRow]:
        """List the execs that are not acknowledged: the truth about exits."""
        raise NotImplementedError

    async def ack(self, exec_id: int) -> None:
        """Forget an ended exec and free its pipes; output of background processes is read and dropped from now on.

        OSError EBUSY while its leader runs, ENOENT for an unknown one.
        """
        raise NotImplementedError

    async def reattach(self, exec_id: int) -> Reattached:
        """Take over the streams of an exec that an earlier agent started; the caller is their only reader now."""
        raise NotImplementedError

    async def file(self, spec: FileSpec, data_fd: int = -1) -> int:
        """Do one file operation by a helper inside the sandbox, as spec.user, and return the bytes moved.

        READ, LIST and STAT write to `data_fd`, WRITE reads from it until end-of-file: a pipe or socket whose other end
        the caller serves meanwhile; the caller closes both (kpinit.files does all this). OSError: ENOENT, EACCES,
        EISDIR, EINVAL (not a regular file), ETIMEDOUT (no progress within the deadline), ...
        """
        raise NotImplementedError

    async def connect(self, port: int, host: str = "127.0.0.1") -> socket.socket:
        """Open a TCP connection inside the sandbox's network; returns it connected and non-blocking.

        OSError: ECONNREFUSED, ENETUNREACH, ...
        """
        raise NotImplementedError

    async def ping(self) -> None:
        """Return when PID 1 answers."""
        raise NotImplementedError

    async def shutdown(self) -> None:
        """End the sandbox with all in it; returns when its PID 1 is gone (its end record says `shutdown`)."""
        raise NotImplementedError

    def close(self) -> None:
        """Detach: everything goes on, output is kept in rings; unclaimed it ends after 30 s."""
        raise NotImplementedError
