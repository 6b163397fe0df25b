"""Words to systemd: ready, stopping, and the watchdog's sign of life; nothing where no systemd listens."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Self, final


@final
class Notifier:
    """The notification socket of `Type=notify`; every call is a no-op when there is none."""

    __slots__ = ("_address", "_task", "_watchdog_s")

    def __init__(self, address: str, watchdog_s: float) -> None:
        self._address = address
        """Path of systemd's datagram socket ("@" first: abstract), or empty."""
        self._watchdog_s = watchdog_s
        """systemd restarts us after so long without a sign of life; 0: never."""
        self._task: asyncio.Task[None] | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """As systemd's NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID say."""
        mine = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        usec = environment.get("WATCHDOG_USEC", "0")
        return cls(environment.get("NOTIFY_SOCKET", ""), int(usec) / 1e6 if mine and usec.isdecimal() else 0.0)

    def ready(self, status: str) -> None:
        """Start-up is over; `status` is one line that `systemctl status` shows. Starts the watchdog's beat."""
        self._send(f"READY=1\nSTATUS={status}")
        if self._address and self._watchdog_s > 0 and self._task is None:
            self._task = asyncio.create_task(self._beat(), name="systemd watchdog")

    async def stopping(self) -> None:
        """Shutdown began; the beat goes on no longer."""
        self._send("STOPPING=1")
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _beat(self) -> None:
        # Sent from the event loop on purpose: a loop that hangs is what the watchdog is to notice.
        while True:
            self._send("WATCHDOG=1")
            await asyncio.sleep(self._watchdog_s / 2)

    def _send(self, text: str) -> None:
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        # systemd gone or its queue full: nothing that we could do about it, and no reason to stop serving.
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock,
        ):
            sock.sendto(text.encode(), socket.MSG_DONTWAIT, address)
