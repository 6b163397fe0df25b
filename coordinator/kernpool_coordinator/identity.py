"""Who this coordinator is: sealing key, cluster id, authority, server certificate and first token, made once."""

import secrets
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, final

from kernpool_coordinator.config import Address, Settings
from kernpool_tls.authority import Authority
from kernpool_tls.files import read_private, write_private
from kernpool_tls.sealing import Sealer

COORDINATOR_ID: Final = "c-1"
TOKEN_PREFIX: Final = "kpt_"  # noqa: S105 - what every token starts with


@final
@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """What the coordinator is to agents and clients; lies in the state directory."""

    cluster_id: str
    key_file: Path
    """Seals the authority here and the secrets in the store."""
    authority: Authority
    server_file: Path
    """Key and certificate of the listeners."""
    names: tuple[str, ...]
    """Host names and addresses in that certificate."""

    @classmethod
    def open(cls, state_dir: Path, names: Iterable[str]) -> Self:
        """Read it, or make it at the first start; raises IdentityError, OSError."""
        key_file = state_dir / "key"
        cluster_id = _kept(state_dir / "cluster-id", lambda: f"kp-{secrets.token_hex(6)}")
        authority = Authority.open(state_dir / "ca", Sealer.from_file(key_file), cluster_id, time.time())
        return cls(cluster_id, key_file, authority, state_dir / "ca" / "server.pem", tuple(names))

    def sign_server(self) -> float:
        """A fresh server certificate; the unix time at which it wants the next one."""
        issued = self.authority.sign_server(COORDINATOR_ID, self.names, self.server_file, time.time())
        return time.time() + (issued.not_after_unix_s - time.time()) / 2


def api_token(path: Path) -> str:
    """The admin token of the token file, made at the first start; raises InsecureFileError, OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return _kept(path, lambda: TOKEN_PREFIX + secrets.token_urlsafe(32))


def _kept(path: Path, make: Callable[[], str]) -> str:
    """The text of a private file, made when it is missing or empty."""
    if not path.exists() or not read_private(path).strip():
        write_private(path, f"{make()}\n".encode())
    return read_private(path).decode("ascii").strip()


def server_names(settings: Settings, *listeners: Address) -> tuple[str, ...]:
    """Every name by which this machine's listeners may be asked for."""
    own = ("localhost", "127.0.0.1", "::1", socket.gethostname(), reachable_host(Address("0.0.0.0", 0)))
    bound = tuple(address.host for address in listeners if not is_wildcard(address))
    return tuple(dict.fromkeys((*own, *bound, *settings.server_names)))


def is_wildcard(address: Address) -> bool:
    """It listens on all addresses."""
    return address.host in ("0.0.0.0", "::")


def reachable_host(address: Address) -> str:
    """The host under which others reach a listener: its own, or for a wildcard the one of the default route."""
    if not is_wildcard(address):
        return address.host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # a documentation address: the kernel picks a route, no packet is sent
            host: str = sock.getsockname()[0]
        except OSError:
            return socket.gethostname()
    return host
