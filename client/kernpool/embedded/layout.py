"""Where the embedded install keeps what (KERNPOOL_HOME), and the settings that outlive a stop."""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, final

from kernpool.endpoint import home
from kernpool.errors import StartError

API_PORT: Final = 46580
NODE_PORT: Final = 46581
SOCKET_PATH_BYTES_MAX: Final = 100
"""The kernel allows 107; the ids of sandboxes have a fixed length."""
LONGEST_SOCKET: Final = "agent/work/s/sb-0123456789abcdef.sock"


@final
@dataclass(frozen=True, slots=True)
class Home:
    """The directories and files of one embedded install."""

    path: Path

    @classmethod
    def find(cls) -> "Home":
        """Take KERNPOOL_HOME, or ~/.kernpool."""
        return cls(home())

    @property
    def coordinator(self) -> Path:
        """State directory of the coordinator."""
        return self.path / "coordinator"

    @property
    def agent(self) -> Path:
        """State directory of the agent."""
        return self.path / "agent"

    @property
    def work(self) -> Path:
        """What outlives the agent: spawner, sandboxes, jobs."""
        return self.agent / "work"

    @property
    def endpoint_file(self) -> Path:
        """Written by the coordinator when it listens."""
        return self.path / "endpoint.json"

    @property
    def token_file(self) -> Path:
        """Written by the coordinator at its first start."""
        return self.path / "token"

    @property
    def join_token_file(self) -> Path:
        """For the agent's first start; removed once it has joined."""
        return self.path / "join-token"

    @property
    def lock_file(self) -> Path:
        """Held by whoever starts or stops."""
        return self.path / "start.lock"

    @property
    def settings_file(self) -> Path:
        """Ports that must stay the same over restarts."""
        return self.path / "settings.json"

    @property
    def coordinator_log(self) -> Path:
        """What the coordinator says."""
        return self.coordinator / "coordinator.log"

    @property
    def agent_log(self) -> Path:
        """What the agent says."""
        return self.agent / "agent.log"

    def make(self) -> None:
        """Make the directories (0700). Raises StartError."""
        if len(os.fsencode(self.path / LONGEST_SOCKET)) > SOCKET_PATH_BYTES_MAX:
            raise StartError(
                f"The path {self.path} is too long: sockets below it would exceed what the kernel allows.",
                hint="Set KERNPOOL_HOME to a shorter one, such as /tmp/kernpool-$USER.",
            )
        try:
            for directory in (self.path, self.coordinator, self.agent):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                directory.chmod(0o700)
        except OSError as error:
            raise StartError(
                f"Cannot use {self.path}: {error.strerror}.", hint="Set KERNPOOL_HOME to a directory of your own."
            ) from error


@final
@dataclass(frozen=True, slots=True)
class Settings:
    """What `kernpool api start` was told, kept for the next start."""

    api_port: int = 0
    """0: not chosen yet."""
    node_listen: str = ""
    """HOST:PORT; empty: not chosen yet."""

    @classmethod
    def load(cls, file: Path) -> "Settings":
        """Read them; a missing or damaged file gives none."""
        try:
            data = json.loads(file.read_bytes())
            return cls(int(data["api_port"]), str(data["node_listen"]))
        except (OSError, ValueError, KeyError, TypeError):
            return cls()

    def save(self, file: Path) -> None:
        """Write them in one step. Raises OSError."""
        new = file.with_name(f".{file.name}.new")
        new.write_text(json.dumps({"api_port": self.api_port, "node_listen": self.node_listen}))
        new.replace(file)

    def told(self, api_port: int | None, node_listen: str | None) -> "Settings":
        """Lay over what a person says now."""
        return replace(
            self,
            api_port=self.api_port if api_port is None else api_port,
            node_listen=self.node_listen if node_listen is None else node_listen,
        )
