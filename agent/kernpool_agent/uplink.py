"""The way to the coordinator for all who have something to tell: it is there or it is not, and they need not care how.

What must arrive although the link is down (ends, inventory, what runs) is told anew by a snapshot after each greeting;
so a message that finds no link is dropped here on purpose.
"""

import logging
from typing import final

from kernpool_mesh.errors import LinkBusyError, LinkClosedError
from kernpool_mesh.link import Link
from kernpool_mesh.messages import Message

log = logging.getLogger(__name__)


@final
class Uplink:
    """Holds the link that stands now, if any."""

    def __init__(self) -> None:
        self._link: Link | None = None

    @property
    def linked(self) -> bool:
        """Whether a greeted link stands."""
        return self._link is not None

    def attach(self, link: Link) -> None:
        """A link was greeted."""
        self._link = link

    def detach(self) -> None:
        """The link is over."""
        self._link = None

    def tell(self, message: Message) -> bool:
        """Send at once if possible and say whether it was queued; for what is small and repeated or superseded."""
        if self._link is None:
            return False
        try:
            self._link.send_nowait(message)
        except (LinkClosedError, LinkBusyError) as error:
            log.debug("%s was not sent: %s", type(message).__name__, error)
            return False
        return True

    async def send(self, message: Message) -> bool:
        """Send, waiting while the link's queue is full; False when there is no link or it ended meanwhile."""
        link = self._link
        if link is None:
            return False
        try:
            await link.send(message)
        except LinkClosedError as error:
            log.debug("%s was not sent: %s", type(message).__name__, error)
            return False
        return True
