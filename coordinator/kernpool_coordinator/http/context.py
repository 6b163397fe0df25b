"""What every handler of the API may use: the core, the way to the nodes, the settings, and the process's own facts."""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import final

from aiohttp.web import BaseRequest

from kernpool_coordinator.config import Settings
from kernpool_coordinator.core.control import ControlPlane
from kernpool_coordinator.http.connection import abandonable
from kernpool_coordinator.http.limits import StreamLimits
from kernpool_coordinator.http.metrics import Metrics
from kernpool_coordinator.nodeside.datapath import DataPath


@final
@dataclass(slots=True, kw_only=True)
class ApiContext:
    """Made once at start; handlers find it in Call.api."""

    core: ControlPlane
    nodes: DataPath
    """HTTP to the agents' data planes, through their links."""
    settings: Settings
    metrics: Metrics
    streams: StreamLimits
    ca_pem: str
    """The authority's certificate, for clients that go straight to a node."""
    _endless: set[asyncio.Task[object]] = field(default_factory=set)
    """Tasks of answers that would never end by themselves."""

    @contextlib.contextmanager
    def endless(self, request: BaseRequest) -> Iterator[None]:
        """While inside, the client's hang-up or the coordinator's stop cancels the current task."""
        task = asyncio.current_task()
        assert task is not None
        self._endless.add(task)
        try:
            with abandonable(request):
                yield
        finally:
            self._endless.discard(task)

    def stop_endless(self) -> None:
        """Cut all of them: the clients see a cut answer and come back."""
        for task in tuple(self._endless):
            task.cancel()
