"""The inventory message: what the node is and has, put together from the machine, its GPUs and its isolation."""

import platform
import socket
from collections.abc import Sequence
from dataclasses import asdict
from typing import final

from kernpool_agent import __version__, machine
from kernpool_agent.ceiling import Ceiling
from kernpool_agent.config import Config
from kernpool_agent.gpu.client import GpuClient
from kernpool_agent.machine import Machine
from kernpool_mesh.messages import Gpu, Inventory, Resources
from kernpool_sandbox.isolation import NodeIsolation

SANDBOXES_FORBIDDEN = "The owner of this node allows no sandboxes (allow_sandboxes in node.toml)."


@final
class InventoryTaker:
    """Looks at the node when asked; the answer changes when a GPU, memory or an address comes or goes."""

    def __init__(self, config: Config, ceiling: Ceiling, gpus: GpuClient, isolation: NodeIsolation) -> None:
        self._config = config
        self._ceiling = ceiling
        self._gpus = gpus
        self._isolation = isolation

    async def take(self, data_plane: tuple[str, int] | None) -> Inventory:
        """Return the inventory; `data_plane` is the (host, port) that the own listener has, if any."""
        seen = machine.look(self._config.work_dir)
        addresses = list(self._config.addresses) or machine.addresses()
        found = await self._gpus.inventory()
        gpus = list(found.gpus) if self._ceiling.allow_gpu else []
        return Inventory(
            hostname=self._config.name or socket.gethostname(),
            total=total(seen, self._config, gpus),
            gpus=gpus,
            addresses=addresses,
            data_plane_urls=urls(data_plane, addresses),
            facts=self._facts(seen, found.driver, found.problems),
            isolation=list(self._isolation.isolation) if self._ceiling.allow_sandboxes else [],
            isolation_problems=self._problems(),
            labels=dict(self._config.labels),
        )

    def _problems(self) -> list[str]:
        forbidden = [] if self._ceiling.allow_sandboxes else [SANDBOXES_FORBIDDEN]
        return forbidden + list(self._isolation.problems)

    def _facts(self, seen: Machine, driver: str, gpu_problems: Sequence[str]) -> dict[str, object]:
        isolation = self._isolation
        facts: dict[str, object] = {
            **seen.facts,
            "cgroup": isolation.cgroup,
            "limits": isolation.limits,
            "uids": isolation.uids,
            "idmap": isolation.idmap,
            "overlay": isolation.overlay,
            "proc": isolation.proc,
            "libc": " ".join(platform.libc_ver()),
            "agent_version": __version__,
            "disks": [asdict(disk) for disk in seen.disks],
        }
        if driver:
            facts["nvidia_driver"] = driver
        if gpu_problems:
            facts["gpu_problems"] = list(gpu_problems)
        return facts


def total(seen: Machine, config: Config, gpus: Sequence[Gpu]) -> Resources:
    """Return what may be promised to work: the machine's, less what the owner keeps back; sick GPUs do not count."""
    return Resources(
        cpu_millis=max(0, seen.cpu_millis - config.reserved_cpu_millis),
        memory_mib=max(0, seen.memory_mib - config.reserved_memory_mib),
        disk_mib=max(0, seen.disk_mib - config.reserved_disk_mib),
        gpus=sum(gpu.healthy for gpu in gpus),
    )


def urls(data_plane: tuple[str, int] | None, addresses: Sequence[str]) -> list[str]:
    """Return where clients may reach the own listener, best first; one that listens everywhere has all addresses."""
    if data_plane is None:
        return []
    host, port = data_plane
    hosts = [a for a in addresses if host == "::" or ":" not in a] if host in ("0.0.0.0", "::") else [host]
    return [f"https://[{h}]:{port}" if ":" in h else f"https://{h}:{port}" for h in hosts]
