"""What several commands share: the client, options and how their values are read."""

import argparse
import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from kernpool.cli.errors import UsageError
from kernpool.cli.terminal import Terminal
from kernpool.endpoint import Endpoint, find_endpoint
from kernpool.errors import NotRunningError
from kernpool.sdk.client import Client
from kernpool.units import duration_s, size_mib

T = TypeVar("T")


def connect(terminal: Terminal, *, start: bool = False) -> Client:
    """Make a client; `start`: this command makes something, so this machine's coordinator is started when none runs."""
    if start:
        from kernpool.sdk.default import may_start

        if may_start():
            from kernpool.embedded.start import ensure_running

            ensure_running(terminal.note)
    return Client(endpoint=endpoint())


def endpoint() -> Endpoint:
    """Find the coordinator; stale files of a crashed one say that none runs."""
    found = find_endpoint()
    if found.embedded:
        from kernpool.embedded.layout import Home
        from kernpool.embedded.start import coordinator_process

        process = coordinator_process(Home.find())
        if process is None:
            raise NotRunningError("Kernpool is not running on this machine.", hint="Start it with: kernpool api start")
        process.close()
    return found


# --- options ---


def add_listing(parser: argparse.ArgumentParser, ids: str = "ids") -> None:
    """Add what every listing has."""
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="as JSON")
    how.add_argument("-q", "--quiet", action="store_true", help=f"{ids} alone, one a line")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json alone."""
    parser.add_argument("--json", action="store_true", help="as JSON")


def add_yes(parser: argparse.ArgumentParser) -> None:
    """Add the consent."""
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")


def _option(read: Callable[[str], T], metavar: str) -> Callable[[str], T]:
    def convert(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    convert.__name__ = metavar
    return convert


def _positive_duration(text: str) -> float:
    seconds = duration_s(text)
    if seconds <= 0:
        raise ValueError("expected a duration above 0")
    return seconds


def _natural(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ValueError(f"expected a whole number above 0, found {text!r}")
    return int(text)


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"expected a whole number, found {text!r}")
    return int(text)


def _cpus(text: str) -> float:
    try:
        cpus = float(text)
    except ValueError:
        cpus = 0.0
    if not 0 < cpus <= 1024:
        raise ValueError(f"expected a number of CPUs like 0.5 or 4, found {text!r}")
    return cpus


DURATION = _option(duration_s, "duration")
POSITIVE_DURATION = _option(_positive_duration, "duration")
SIZE_MIB = _option(size_mib, "size")
NATURAL = _option(_natural, "number")
WHOLE = _option(_whole, "number")
CPUS = _option(_cpus, "number")


def pairs(items: Sequence[str], option: str) -> dict[str, str]:
    """Read KEY=VALUE items. Raises UsageError."""
    read: dict[str, str] = {}
    for item in items:
        name, separator, value = item.partition("=")
        if not name or not separator:
            raise UsageError(f"{option} {item!r}: expected KEY=VALUE")
        read[name] = value
    return read


def environment(items: Sequence[str], option: str) -> dict[str, str]:
    """Read KEY=VALUE items; a KEY alone takes its value from our own environment. Raises UsageError."""
    read: dict[str, str] = {}
    for item in items:
        name, separator, value = item.partition("=")
        if not name:
            raise UsageError(f"{option} {item!r}: expected KEY=VALUE, or KEY alone for the value it has here")
        if not separator:
            if name not in os.environ:
                raise UsageError(f"{option} {name}: there is no such variable here; say {option} {name}=VALUE")
            value = os.environ[name]
        read[name] = value
    return read


def environment_file(path: str, option: str) -> dict[str, str]:
    """Read a file of KEY=VALUE lines; empty lines and those that begin with # are skipped. Raises UsageError."""
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - a Path would not help
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{option} {path}: {getattr(error, 'strerror', None) or 'not UTF-8 text'}") from None
    read: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip().removeprefix("export ").strip()
        if not text or text.startswith("#"):
            continue
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise UsageError(f"{option} {path}:{number}: expected KEY=VALUE")
        read[name.strip()] = _unquoted(value.strip())
    return read


def _unquoted(value: str) -> str:
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if quoted else value
