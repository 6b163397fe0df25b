"""A link between a ControlPlane and a SimAgent on one event loop: ordered both ways, and breakable."""

import asyncio
from collections.abc import Iterable
from typing import final

from kernpool_coordinator.core.control import ControlPlane
from kernpool_coordinator.core.session import ByteStream
from kernpool_coordinator.errors import BusyError, UnreachableError
from kernpool_coordinator.simulation.agent import SimAgent
from kernpool_mesh.messages import Message, Welcome


@final
class SimLink:
    """A NodeSession whose other end is an agent in memory."""

    def __init__(self, plane: ControlPlane, agent: SimAgent) -> None:
        self._plane = plane
        self.agent = agent
        self.closed = False
        self.closed_because = ""
        self.deaf = False
        """What the coordinator sends is lost."""
        self.mute = False
        """What the agent says is lost."""
        self.full = False
        """The send queue has no room."""
        self.sent: list[Message] = []
        """All that the coordinator has sent on this link."""
        self.welcome: Welcome | None = None

    @classmethod
    def connect(cls, plane: ControlPlane, agent: SimAgent) -> "SimLink":
        """Dial, greet, tell all. Raises what node_connected raises."""
        link = cls(plane, agent)
        link.welcome = plane.node_connected(link, agent.hello())
        link.tell([agent.inventory(), agent.snapshot()])
        return link

    # --- NodeSession ---

    @property
    def node_id(self) -> str:
        """The id of the certificate."""
        return self.agent.node_id

    def send_nowait(self, message: Message, /) -> None:
        """Queue a message to the agent."""
        if self.closed:
            raise UnreachableError(f"the link of {self.node_id} is closed")
        if self.full:
            raise BusyError(f"the queue of {self.node_id} is full")
        self.sent.append(message)
        if not self.deaf:
            asyncio.get_running_loop().call_soon(self._deliver, message)

    async def open_stream(self, actor: str, object_: str, verbs: list[str], /) -> ByteStream:
        """Refuse: this agent has no data plane."""
        raise UnreachableError(f"{self.node_id} has no data plane: {actor} may not {verbs} {object_}")

    def close(self, reason: str, /) -> None:
        """Hang up."""
        if not self.closed:
            self.closed, self.closed_because = True, reason
            asyncio.get_running_loop().call_soon(self._plane.node_disconnected, self, reason)

    # --- the agent's end ---

    def tell(self, messages: Iterable[Message]) -> None:
        """The agent says something."""
        for message in messages:
            if not self.closed and not self.mute:
                self._plane.node_message(self, message)

    def cut(self, reason: str = "cut by the test") -> None:
        """The connection breaks, now."""
        if not self.closed:
            self.closed = True
            self._plane.node_disconnected(self, reason)

    def _deliver(self, message: Message) -> None:
        if not self.closed:
            self.tell(self.agent.handle(message))
