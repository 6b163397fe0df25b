"""The agent's settings: one frozen table, each row with default, unit and reason, filled from a TOML file and flags.

A key that is not in the table is refused with the nearest one that is. A flag wins over the file. No setting can raise
what the node's owner allows: that is in node.toml (ceiling.py).
"""

import argparse
import difflib
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, TypeVar, final
from urllib.parse import urlsplit

from kernpool_agent.errors import ConfigError


def _row(default: Any, why: str, kind: "Callable[[Any], Any]", unit: str = "") -> Any:
    return field(default=default, metadata={"why": why, "kind": kind, "unit": unit})


_N = TypeVar("_N", int, float)

# --- kinds: each takes what TOML or a flag gives and returns the value, or raises ValueError("expected ...") ---


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("expected text")
    return value


def _path(value: Any) -> Path:
    if not _text(value):
        raise ValueError("expected a path")
    return Path(value).expanduser().absolute()


def _url(value: Any) -> str:
    parts = urlsplit(_text(value))
    if parts.scheme != "https" or not parts.hostname or parts.path not in ("", "/"):
        raise ValueError("expected https://HOST:PORT")
    return f"https://{parts.netloc}"


def _listen(value: Any) -> str:
    host, _, port = _text(value).rpartition(":")
    if value and not (host and port.isdecimal() and int(port) < 65536):
        raise ValueError("expected HOST:PORT (port 0: any free one), or nothing for no listener")
    return str(value)


def _number(low: float, high: float) -> Callable[[Any], float]:
    def parse(value: Any) -> float:
        number = _converted(float, value)
        if not low <= number <= high:
            raise ValueError(f"expected a number from {low:g} to {high:g}")
        return number

    return parse


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        number = _converted(int, value)
        if not low <= number <= high:
            raise ValueError(f"expected a whole number from {low} to {high}")
        return number

    return parse


def _converted(kind: type[_N], value: Any) -> _N:
    if isinstance(value, bool) or not isinstance(value, (int, str) if kind is int else (int, float, str)):
        raise ValueError("expected a whole number" if kind is int else "expected a number")
    try:
        return kind(value)
    except ValueError:
        raise ValueError("expected a whole number" if kind is int else "expected a number") from None


def _choice(*allowed: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if value not in allowed:
            raise ValueError(f"expected one of {', '.join(allowed)}")
        return str(value)

    return parse


def _pairs(value: Any) -> tuple[tuple[str, str], ...]:
    if isinstance(value, str):  # a flag: a=b,c=d
        value = dict(item.partition("=")[::2] for item in value.split(",") if item)
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()) or "" in value:
        raise ValueError("expected names with text values, such as rack=a1")
    return tuple(value.items())


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [item for item in value.split(",") if item]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError("expected a list of texts")
    return tuple(value)


# --- the table ---


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings of the agent."""

    state_dir: Path = _row(Path("/var/lib/kernpool/agent"), "identity, journal and work; survives restarts", _path)  # noqa: RUF009
    coordinator: str = _row("", "the coordinator's node listener; needed", _url)
    join_token_file: Path | None = _row(  # noqa: RUF009
        None, "read when the node has no identity yet; a file, since arguments are seen by everybody", _path
    )
    name: str = _row("", "how people call this node; empty: its hostname", _text)
    labels: tuple[tuple[str, str], ...] = _row((), "told with the inventory, for placement", _pairs)
    addresses: tuple[str, ...] = _row((), "where other nodes reach this one; empty: found out", _texts)
    data_listen: str = _row(
        "127.0.0.1:0", "own TLS listener of the data plane; empty: everything goes through the coordinator", _listen
    )
    node_file: Path = _row(Path("/etc/kernpool/node.toml"), "the owner's ceiling (ceiling.py)", _path)  # noqa: RUF009
    agent_user: str = _row("", "for `work` as root: who the agent runs as (kernpool); empty: root, too", _text)
    cgroup_parent: str = _row(
        "", "where cgroups of work are made; empty: where kp-work.service runs, else the top", _text
    )
    jobs_as: str = _row(
        "starter", "who jobs run as when the agent is root (docs/agent.md)", _choice("starter", "job_user")
    )
    gpu: str = _row("auto", "off: never start the NVML worker", _choice("auto", "off"))
    gpu_call_timeout_s: float = _row(
        20.0, "a driver call that takes longer is given up and its worker killed", _number(0.1, 300), "s"
    )
    inventory_interval_s: float = _row(60.0, "how often the node looks at itself anew", _number(1, 86400), "s")
    dial_timeout_s: float = _row(10.0, "for connecting and greeting", _number(0.5, 120), "s")
    reconnect_s_min: float = _row(0.2, "first wait after a lost link; doubles, with jitter", _number(0.01, 60), "s")
    reconnect_s_max: float = _row(15.0, "longest wait between two tries", _number(0.1, 600), "s")
    ended_repeat_s: float = _row(5.0, "how often an end is told again until acknowledged", _number(0.1, 300), "s")
    ended_attempts_max: int = _row(
        1000, "ended attempts whose logs are kept; the oldest acknowledged ones go first", _whole(1, 100_000)
    )
    creates_at_once: int = _row(64, "sandboxes being made at the same time", _whole(1, 4096))
    sandbox_cpu_millis: int = _row(0, "a sandbox without a cpu limit counts so much", _whole(0, 1_000_000), "m")
    sandbox_memory_mib: int = _row(4, "a sandbox without a memory limit counts so much", _whole(0, 1 << 24), "MiB")
    reserved_cpu_millis: int = _row(0, "kept back from work for the system", _whole(0, 1_000_000), "m")
    reserved_memory_mib: int = _row(128, "kept back from work for the system and the agent", _whole(0, 1 << 24), "MiB")
    reserved_disk_mib: int = _row(256, "kept back from work for the journal and the system", _whole(0, 1 << 30), "MiB")
    log_level: str = _row("info", "what goes to stderr", _choice("debug", "info", "warning", "error"))

    @property
    def work_dir(self) -> Path:
        """Where kp-init keeps sandboxes and jobs."""
        return self.state_dir / "work"


FIELDS: Final[Mapping[str, Field[Any]]] = {row.name: row for row in fields(Config)}


def load(path: Path | None, flags: Mapping[str, Any]) -> Config:
    """Return the settings of the file (None: no file) with the given flags over them.

    Raises ConfigError naming the file, the key, what was expected and a near match.
    """
    values: dict[str, Any] = {}
    if path is not None:
        values = {key: _value(key, value, str(path)) for key, value in _read_toml(path).items()}
    values |= {key: _value(key, value, "the command line") for key, value in flags.items()}
    return Config(**values)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Give the parser one flag per setting; those not given are absent from its namespace."""
    for name, row in FIELDS.items():
        unit = f" [{row.metadata['unit']}]" if row.metadata["unit"] else ""
        parser.add_argument(
            "--" + name.replace("_", "-"),
            dest=name,
            default=argparse.SUPPRESS,
            metavar="VALUE",
            help=f"{row.metadata['why']}{unit} (default: {_shown(row.default)})".replace("%", "%%"),
        )


def _value(key: str, value: Any, where: str) -> Any:
    if key not in FIELDS:
        near = difflib.get_close_matches(key, FIELDS, n=1)
        hint = f"did you mean {near[0]}?" if near else "`kp-agent run --help` lists the settings"
        raise ConfigError(f"{where}: unknown setting {key}; {hint}")
    try:
        return FIELDS[key].metadata["kind"](value)
    except ValueError as error:
        raise ConfigError(f"{where}: {key} = {value!r}: {error}") from error


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error


def _shown(default: Any) -> str:
    return str(default) if default not in ("", None, ()) else "none"
