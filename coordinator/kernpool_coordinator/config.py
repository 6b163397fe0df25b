"""Settings of the coordinator: one table with default, unit and reason, filled from a TOML file and from flags."""

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, Self, final


class ConfigError(Exception):
    """A setting that cannot be used; the message names the setting, what is wrong and what was expected."""


def _setting(
    default: Any, why: str, *, unit: str = "", low: float | None = None, high: float | None = None, flag: bool = False
) -> Any:
    """A row of the table; `flag` gives it a command line option of the same name."""
    return field(default=default, metadata={"why": why, "unit": unit, "low": low, "high": high, "flag": flag})


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything the coordinator can be told; the metadata of a field holds its unit, bounds and reason."""

    state_dir: str = _setting(
        "/var/lib/kernpool/coordinator", "database, sealed CA and log live here; 0700, one coordinator each", flag=True
    )
    api_listen: str = _setting(
        "127.0.0.1:46580",
        "people and programs call here; plain HTTP on loopback, HTTPS elsewhere",
        unit="host:port",
        flag=True,
    )
    node_listen: str = _setting(
        "127.0.0.1:46581", "agents enrol and link here; always TLS 1.3", unit="host:port", flag=True
    )
    endpoint_file: str = _setting(
        "",
        "where to write the API's real URL and the CA's pin; empty: endpoint.json in state_dir",
        unit="path",
        flag=True,
    )
    token_file: str = _setting(
        "", "where the first admin token is kept (0600); empty: admin-token in state_dir", unit="path", flag=True
    )
    node_url: str = _setting(
        "",
        "URL that agents are told to dial; empty: https:// and the node listener's own address",
        unit="url",
        flag=True,
    )
    server_names: tuple[str, ...] = _setting(
        (),
        "further DNS names and addresses in the server certificate, for agents that come through a proxy or a DNS name",
    )
    api_cert_file: str = _setting(
        "", "PEM chain for an HTTPS API listener; empty: a certificate of the coordinator's own authority", unit="path"
    )
    api_key_file: str = _setting("", "PEM key of api_cert_file", unit="path")
    log_level: str = _setting("info", "debug, info, warning or error")

    connections_max: int = _setting(
        4096,
        "open sockets on the API listener; each costs about 20 KiB and a descriptor",
        unit="sockets",
        low=8,
        high=100_000,
    )
    streams_max: int = _setting(
        1024,
        "long answers at once (logs, events, execs, bulk creates) so that short requests always find room",
        unit="requests",
        low=1,
        high=100_000,
    )
    streams_per_token_max: int = _setting(
        256,
        "long answers at once of one token, so that one runaway script leaves room for the others",
        unit="requests",
        low=1,
        high=100_000,
    )
    header_wait_s: float = _setting(
        75.0,
        "an idle or half-sent request head is cut after this; longer than the 60 s of common proxies",
        unit="s",
        low=1,
        high=3600,
    )
    body_wait_s: float = _setting(30.0, "a JSON body must have come by then", unit="s", low=1, high=600)
    request_deadline_s: float = _setting(
        60.0, "an ordinary request that is not done by then is answered 504", unit="s", low=1, high=600
    )
    body_bytes_max: int = _setting(4 << 20, "largest JSON body", unit="bytes", low=4096, high=64 << 20)
    wait_s_max: float = _setting(
        55.0,
        "longest long poll of /jobs/{id}/wait; below the 60 s after which common proxies cut",
        unit="s",
        low=1,
        high=600,
    )
    tunnel_idle_s: float = _setting(
        5.0,
        "an idle kept-alive stream to a node is closed after this; the node itself keeps it for 75 s",
        unit="s",
        low=0,
        high=60,
    )
    log_reconnect_s: float = _setting(
        60.0,
        "a followed log is cut when its node stays away for so long; clients ask again and are told",
        unit="s",
        low=1,
        high=3600,
    )
    tunnel_first_byte_s: float = _setting(
        60.0, "a node must have answered a tunnelled request's head by then", unit="s", low=1, high=600
    )

    join_tries_per_min: int = _setting(
        600,
        "enrolments and renewals per address (a NAT may hide a whole cluster); bounds the CPU of those who only try",
        unit="requests/min",
        low=1,
        high=100_000,
    )
    node_connections_max: int = _setting(
        20_000,
        "open sockets on the node listener: one link for each agent, and some that enrol",
        unit="sockets",
        low=8,
        high=100_000,
    )
    greeting_s: float = _setting(10.0, "an agent's Hello must have come by then", unit="s", low=0.1, high=60)
    heartbeat_interval_s: float = _setting(2.0, "how often agents give a sign of life", unit="s", low=0.05, high=60)
    suspect_after_s: float = _setting(
        6.0, "silence after which a node gets no new work; three heartbeats", unit="s", low=0.1, high=600
    )
    unreachable_after_s: float = _setting(
        8.0, "silence after which a node counts as unreachable; nothing is killed", unit="s", low=0.1, high=3600
    )
    node_lost_after_s: float = _setting(
        300.0, "an unreachable node's attempts may be replaced after this", unit="s", low=1, high=30 * 86_400
    )
    database_url: str = _setting("", "SQLAlchemy URL of the store; empty: SQLite in state_dir", unit="url")
    data_token_s: float = _setting(
        300.0, "life of a token for direct access to a node; 300 at most", unit="s", low=5, high=300
    )
    certificate_life_s: float = _setting(
        86_400.0, "life of a node certificate; renewed at half of it", unit="s", low=60, high=30 * 86_400
    )
    shutdown_s: float = _setting(
        5.0, "open requests get this long at SIGTERM before they are cut", unit="s", low=0, high=60
    )

    def core(self) -> dict[str, Any]:
        """The settings that are the core's own, as CoreConfig names them."""
        return {name: getattr(self, name) for name in _CORE}


_CORE: Final = (
    "database_url",
    "heartbeat_interval_s",
    "node_lost_after_s",
    "suspect_after_s",
    "unreachable_after_s",
)
FIELDS: Final[Mapping[str, Field[Any]]] = {entry.name: entry for entry in fields(Settings)}
FLAGS: Final[tuple[str, ...]] = tuple(name for name, entry in FIELDS.items() if entry.metadata["flag"])
LOG_LEVELS: Final = ("debug", "info", "warning", "error")


def _checked(key: str, value: Any, source: str) -> Any:
    """`value` if the table allows it for `key`."""
    if key not in FIELDS:
        near = difflib.get_close_matches(key, FIELDS, n=1)
        hint = f"did you mean `{near[0]}`?" if near else "`kp-coordinator --settings` prints all of them."
        raise ConfigError(f"{source}: unknown setting `{key}`; {hint}")
    entry = FIELDS[key]
    value = _typed(key, value, entry.default, source)
    if key == "log_level" and value not in LOG_LEVELS:
        raise ConfigError(f"{source}: `log_level` is `{value}`, expected one of {', '.join(LOG_LEVELS)}.")
    low, high = entry.metadata["low"], entry.metadata["high"]
    if low is not None and not low <= value <= high:
        unit = f" {entry.metadata['unit']}"
        raise ConfigError(f"{source}: `{key}` is {value}, expected {low} to {high}{unit}.")
    return value


def _typed(key: str, value: Any, default: Any, source: str) -> Any:
    """`value` in the type of `default`; an int stands for a float, a list of strings for a tuple."""
    match default:
        case float() if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        case int() if isinstance(value, int) and not isinstance(value, bool):
            return value
        case str() if isinstance(value, str):
            return value
        case tuple() if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
            return tuple(value)
        case _:
            expected = {float: "a number", int: "a whole number", str: "a string", tuple: "a list of strings"}
            raise ConfigError(f"{source}: `{key}` is {value!r}, expected {expected[type(default)]}.")


def load(config_file: str | None, flags: Mapping[str, str]) -> Settings:
    """Settings of the file (if any) with the flags over them.

    Raises ConfigError when the file cannot be read or parsed or has a key or value that the table does not allow.
    """
    from_file = (
        {key: _checked(key, value, config_file) for key, value in _toml(config_file).items()} if config_file else {}
    )
    from_flags = {key: _checked(key, value, "command line") for key, value in flags.items()}
    return Settings(**(from_file | from_flags))


def _toml(path: str) -> dict[str, Any]:
    """The document at `path`."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"Cannot read the configuration {path}: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error


@final
@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen: a host name or IP address, and a port (0: any free one)."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, *, key: str) -> Self:
        """`HOST:PORT`, IPv6 in brackets; raises ConfigError naming `key`."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65_535 or not host:
            raise ConfigError(f"`{key}` is `{text}`, expected HOST:PORT such as 127.0.0.1:46580 or [::1]:46580.")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    @property
    def loopback(self) -> bool:
        """Only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def describe() -> str:
    """The table as text, for `kp-coordinator --settings`."""
    rows = []
    for name, entry in FIELDS.items():
        unit = f" {entry.metadata['unit']}" if entry.metadata["unit"] else ""
        default = list(entry.default) if isinstance(entry.default, tuple) else entry.default
        rows.append(f"{name} = {default!r}{unit}\n    {entry.metadata['why']}")
    return "\n".join(rows) + "\n"
