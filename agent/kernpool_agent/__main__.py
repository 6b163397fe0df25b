"""`kp-agent`: run the node daemon (default), be the node's spawner (`work`), or stop a running agent (`stop`).

Exit status: 0 after a stop, 1 for a fault that a restart may cure, 2 when a person has to change something.
"""

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from kernpool_agent import __version__, config, logs
from kernpool_agent.config import Config
from kernpool_agent.errors import AgentError, FatalError
from kernpool_sandbox.errors import SandboxError
from kernpool_sandbox.kpinit.errors import KpInitError

EXIT_FAULT = 1
EXIT_PERSON = 2
"""The unit files name it in RestartPreventExitStatus: starting again would only repeat the message."""
COMMANDS = ("run", "work", "stop")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the subcommands and return the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] not in (*COMMANDS, "-h", "--help", "--version"):
        arguments.insert(0, "run")
    flags = vars(_parser().parse_args(arguments))
    command, config_file = flags.pop("command"), flags.pop("config")
    all_work, timeout_s = flags.pop("all_work", False), flags.pop("timeout_s", 0.0)
    try:
        settings = config.load(config_file, flags)
        logs.configure(settings.log_level)
        match command:
            case "work":
                _work(settings)
            case "stop":
                _stop(settings, timeout_s, all_work=all_work)
            case _:
                _run(settings)
    except (AgentError, SandboxError, KpInitError, BaseExceptionGroup) as error:
        return _told(error)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("kp-agent", description="Kernpool's node daemon.")
    parser.add_argument("--version", action="version", version=f"kp-agent {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in (
        ("run", "run the node daemon in the foreground (the default)"),
        ("work", "run the spawner, which owns all work, in the foreground (kp-work.service)"),
        ("stop", "stop the agent of a state directory; its work goes on"),
    ):
        command = commands.add_parser(name, help=what, description=what)
        command.add_argument("--config", type=Path, help="TOML file with the settings below; flags win over it")
        config.add_flags(command)
        if name == "stop":
            command.add_argument("--all-work", action="store_true", help="end all jobs and sandboxes too")
            command.add_argument("--timeout-s", type=float, default=60.0, help="how long to wait (default: 60)")
    return parser


def _run(settings: Config) -> None:
    if not settings.coordinator:
        raise FatalError("no coordinator is named: give --coordinator https://HOST:PORT, or set it in --config FILE")
    from kernpool_agent.supervisor import Supervisor
    from kernpool_agent.systemd import Notifier

    async def run() -> None:
        await Supervisor(settings, Notifier()).run()

    asyncio.run(run())


def _work(settings: Config) -> None:
    from kernpool_agent.spawner import become_spawner

    become_spawner(settings)


def _stop(settings: Config, timeout_s: float, *, all_work: bool) -> None:
    from kernpool_agent.stopping import stop

    stop(settings, timeout_s, all_work=all_work)


def _told(error: BaseException) -> int:
    """Say each error in one line and return the exit status; what is none of ours is a bug and shows its traceback."""
    leaves = list(_leaves(error))
    for leaf in leaves:
        if not isinstance(leaf, AgentError | SandboxError | KpInitError):
            raise error
        sys.stderr.write(f"kp-agent: {leaf}\n")
    return EXIT_PERSON if any(isinstance(leaf, FatalError) for leaf in leaves) else EXIT_FAULT


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


if __name__ == "__main__":
    sys.exit(main())
