"""The service manager's notification socket (sd_notify), spoken without a library.

Outside systemd NOTIFY_SOCKET is not set and nothing is sent. A lost datagram is no fault of ours: logged once.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from typing import final

log = logging.getLogger(__name__)


@final
class Notifier:
    """Tells the service manager how we are."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):
            self._address = "\0" + self._address[1:]  # systemd's spelling of an abstract socket
        self.watchdog_s = _watchdog_s(environ)
        """Interval after which systemd kills a service that did not ping; 0: no watchdog."""
        self._complained = False

    def ready(self, status: str = "") -> None:
        """Start-up is done."""
        self._send(f"READY=1\nSTATUS={status}" if status else "READY=1")

    def status(self, text: str) -> None:
        """Set the one line that `systemctl status` shows."""
        self._send(f"STATUS={text}")

    def stopping(self) -> None:
        """Shutdown began."""
        self._send("STOPPING=1")

    async def ping_watchdog(self) -> None:
        """Ping for ever from this event loop, so that one that hangs is noticed; returns when there is no watchdog."""
        while self.watchdog_s:
            self._send("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_s / 3)

    def _send(self, text: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.setblocking(False)  # noqa: FBT003
                sock.sendto(text.encode(), self._address)
        except OSError as error:
            if not self._complained:
                log.warning("systemd's notification socket does not take our state: %s", error.strerror)
            self._complained = True


def _watchdog_s(environ: Mapping[str, str]) -> float:
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    usec = environ.get("WATCHDOG_USEC", "0")
    return int(usec) / 1e6 if usec.isdigit() else 0.0
