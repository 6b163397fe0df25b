"""Lets others wait for a node to link (again)."""

import asyncio
from typing import final


@final
class Arrivals:
    """Told of each new link; wakes those who wait for that node."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        """By node id; no empty sets."""

    def arrived(self, node_id: str) -> None:
        """The node's link is live."""
        for future in self._waiting.pop(node_id, ()):
            if not future.done():
                future.set_result(None)

    async def wait(self, node_id: str, timeout_s: float) -> bool:
        """Wait for the next arrival; False when the time is over first."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(node_id, set()).add(future)
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return False
        finally:
            waiting = self._waiting.get(node_id)
            if waiting is not None:
                waiting.discard(future)
                if not waiting:
                    del self._waiting[node_id]
        return True
