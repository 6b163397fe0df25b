"""kp-coordinator: flags and file in, the daemon runs; a refusal to start is one sentence and an exit status."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import Final

import kernpool
from kernpool_coordinator import config

EXIT_FAILED: Final = 1
EXIT_CONFIG: Final = 2
EXIT_PORT_IN_USE: Final = 3
EXIT_STATE_DIR_BUSY: Final = 4


def main(argv: Sequence[str] | None = None) -> int:
    """Run the coordinator; the process's exit status."""
    arguments = vars(_parser().parse_args(argv))
    if arguments.pop("settings"):
        sys.stdout.write(config.describe())
        return 0
    config_file = arguments.pop("config")
    try:
        settings = config.load(config_file, {key: value for key, value in arguments.items() if value is not None})
    except config.ConfigError as error:
        return _refuse(EXIT_CONFIG, error)
    return _run(settings)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kp-coordinator", description="The control plane of Kernpool.")
    parser.add_argument("--version", action="version", version=f"kp-coordinator {kernpool.__version__}")
    parser.add_argument("--config", metavar="FILE", help="TOML file with settings")
    parser.add_argument("--settings", action="store_true", help="print every setting with default and reason, and exit")
    for name in config.FLAGS:
        why = config.FIELDS[name].metadata["why"]
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, help=why)
    return parser


def _run(settings: config.Settings) -> int:
    import uvloop

    from kernpool_coordinator import logs
    from kernpool_coordinator.daemon import serve
    from kernpool_coordinator.errors import CoordinatorError
    from kernpool_coordinator.http.listen import PortInUseError
    from kernpool_coordinator.statedir import StateDirBusyError, StateDirError
    from kernpool_tls.errors import IdentityError

    logs.configure(settings.log_level)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings))
    except config.ConfigError as error:
        return _refuse(EXIT_CONFIG, error)
    except PortInUseError as error:
        return _refuse(EXIT_PORT_IN_USE, error)
    except StateDirBusyError as error:
        return _refuse(EXIT_STATE_DIR_BUSY, error)
    except (StateDirError, IdentityError, CoordinatorError, OSError) as error:
        return _refuse(EXIT_FAILED, error)
    return 0


def _refuse(status: int, error: Exception) -> int:
    sys.stderr.write(f"kp-coordinator: {error}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
