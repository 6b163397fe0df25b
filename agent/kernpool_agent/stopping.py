"""`kp-agent stop`: tell the agent that holds a state directory to let go, or do its last work when there is none."""

import asyncio
import logging
import os
import select
import signal

from kernpool_agent.config import Config
from kernpool_agent.errors import AgentError, StateDirBusyError
from kernpool_agent.statedir import StateDir

log = logging.getLogger(__name__)


def stop(config: Config, timeout_s: float, *, all_work: bool) -> None:
    """Return when no agent holds the directory and, with `all_work`, nothing runs any more.

    Raises AgentError when that takes longer than `timeout_s`.
    """
    pid = _holder(config)
    if pid is not None:
        _end(pid, signal.SIGUSR1 if all_work else signal.SIGTERM, timeout_s)
    elif all_work and config.work_dir.exists():
        asyncio.run(_end_work_here(config))


def _holder(config: Config) -> int | None:
    if not config.state_dir.exists():
        return None
    try:
        StateDir.hold(config.state_dir).close()
    except StateDirBusyError as error:
        if error.pid is None:
            raise AgentError(f"{config.state_dir} is held by an agent that is just starting; try again") from error
        return error.pid
    return None


def _end(pid: int, number: signal.Signals, timeout_s: float) -> None:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(pidfd, number)
        ended, _, _ = select.select([pidfd], [], [], timeout_s)
    finally:
        os.close(pidfd)
    if not ended:
        raise AgentError(f"the agent with pid {pid} did not stop within {timeout_s:g} s")


async def _end_work_here(config: Config) -> None:
    """No agent runs, but its work may: be the agent for a moment."""
    from kernpool_agent.node import open_node

    async with open_node(config) as node:
        await node.end_all_work()
