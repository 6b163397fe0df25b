"""A command that lives as long as its request: whatever ends the request ends the command, with every descendant."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from kernpool_mesh.messages import Command
from kernpool_sandbox.errors import SandboxError
from kernpool_sandbox.kpinit.errors import KpInitError

if TYPE_CHECKING:
    from kernpool_sandbox.runner import Process
    from kernpool_sandbox.runtime import SandboxRuntime

_log = logging.getLogger(__name__)

T = TypeVar("T")
_REAP_TIMEOUT_S: Final = 10.0


@final
class Foreground:
    """Starts commands for requests and kills those whose request is gone, behind the back of a cancelled handler."""

    def __init__(self, runtime: "SandboxRuntime") -> None:
        self._runtime = runtime
        self._tasks: set[asyncio.Task[Any]] = set()
        """Starts and kills under way; they outlive the handler that asked for them."""

    @contextlib.asynccontextmanager
    async def run(self, sandbox_id: str, command: Command, *, stdin: bool) -> "AsyncIterator[Process]":
        """Start a command for the body of the `with`; a body that raises or is cancelled kills it."""
        process = await self._start(sandbox_id, command, stdin=stdin)
        try:
            yield process
        except BaseException:
            self._keep(self._kill(process))
            raise
        process.close()

    async def close(self) -> None:
        """Wait for the kills under way."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _start(self, sandbox_id: str, command: Command, *, stdin: bool) -> "Process":
        starting = self._keep(self._runtime.exec(sandbox_id, command, stdin=stdin))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._keep(self._kill_started(starting))
            raise

    async def _kill_started(self, starting: "asyncio.Task[Process]") -> None:
        with contextlib.suppress(SandboxError, KpInitError, OSError):  # it did not start: nothing to kill
            await self._kill(await starting)

    async def _kill(self, process: "Process") -> None:
        try:
            async with asyncio.timeout(_REAP_TIMEOUT_S):
                await process.signal(signal.SIGKILL, tree=True)
                process.close()
                await process.wait()
        except TimeoutError:
            _log.warning("a command whose client is gone does not die within %s s", _REAP_TIMEOUT_S)
        except (SandboxError, KpInitError, OSError) as error:
            _log.info("a command whose client is gone ended with its sandbox: %s", error)

    def _keep(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
