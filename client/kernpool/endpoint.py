"""Where the coordinator is and with what token: from arguments, the environment, or the files of this machine's own."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final
from urllib.parse import SplitResult, urlsplit

from kernpool.errors import KernpoolError, NotRunningError

FILE_BYTES_MAX: Final = 64 * 1024
LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
NOT_RUNNING_HINT: Final = "Start it with: kernpool api start"


@final
@dataclass(frozen=True, slots=True)
class Endpoint:
    """One coordinator, as a client needs it."""

    url: str
    """http:// or https://, host and port, perhaps a path in front of /api/v1."""
    token: str = field(repr=False)
    ca_file: str | None = None
    """PEM of the authorities that count for https; None: those of the system."""
    embedded: bool = False
    """It is this machine's own, found by its files."""

    @property
    def is_local(self) -> bool:
        """It is reached over loopback: a detour through it costs no network."""
        return urlsplit(self.url).hostname in LOOPBACK


def home() -> Path:
    """Give the directory of the embedded install (KERNPOOL_HOME, default ~/.kernpool)."""
    named = os.environ.get("KERNPOOL_HOME")
    return Path(named).absolute() if named else Path.home() / ".kernpool"


def find_endpoint(
    url: str | None = None,
    token: str | None = None,
    ca_file: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Endpoint:
    """Find the coordinator.

    Raises NotRunningError when none is named and none runs here, KernpoolError for bad settings.
    """
    url = url or environ.get("KERNPOOL_API_URL")
    if not url:
        return _embedded(home(), token)
    token = token or environ.get("KERNPOOL_API_TOKEN")
    if not token:
        raise KernpoolError(
            f"There is no token for the coordinator {url}.",
            hint="Set KERNPOOL_API_TOKEN to a token that its administrator makes with: kernpool token create NAME",
        )
    check_url(url, "KERNPOOL_API_URL")
    return Endpoint(url.rstrip("/"), token, ca_file or environ.get("KERNPOOL_API_CA_FILE"))


def check_url(url: str, name: str) -> SplitResult:
    """Take an http(s) URL apart. Raises KernpoolError naming `name`."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise KernpoolError(f"{name} is {url!r}, expected a URL like https://kernpool.example.com:46580.")
    return parts


def _embedded(home_dir: Path, token: str | None) -> Endpoint:
    """Read what the coordinator of this machine wrote when it began to listen."""
    text = _read(home_dir / "endpoint.json")
    if text is None:
        raise NotRunningError("Kernpool is not running on this machine.", hint=NOT_RUNNING_HINT)
    try:
        url = json.loads(text)["url"]
        check_url(url, "url")
    except (ValueError, KeyError, TypeError, KernpoolError):
        raise KernpoolError(
            f"The file {home_dir / 'endpoint.json'} is damaged.",
            hint="Restart with: kernpool api stop; kernpool api start",
        ) from None
    token = token or (_read(home_dir / "token") or "").strip()
    if not token:
        raise KernpoolError(
            f"The file {home_dir / 'token'} with the API's token is missing.",
            hint="Restart with: kernpool api stop; kernpool api start",
        )
    return Endpoint(url.rstrip("/"), token, embedded=True)


def _read(path: Path) -> str | None:
    """Read a small file; None when it is not there."""
    try:
        with path.open("rb") as file:
            return file.read(FILE_BYTES_MAX).decode("utf-8", "replace")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise KernpoolError(f"Cannot read {path}: {error.strerror}.") from error
