"""Words to the service manager, over a real datagram socket."""

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernpool_agent.systemd import Notifier


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """systemd's end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(5)
        yield listening


def test_ready_status_and_stopping_arrive(manager: socket.socket) -> None:
    """`systemctl start` waits for READY; `systemctl status` shows the line."""
    notifier = Notifier({"NOTIFY_SOCKET": manager.getsockname()})
    notifier.ready("work is taken over")
    notifier.status("linked")
    notifier.stopping()
    assert [manager.recv(999) for _ in range(3)] == [
        b"READY=1\nSTATUS=work is taken over",
        b"STATUS=linked",
        b"STOPPING=1",
    ]


async def test_the_watchdog_is_fed_more_often_than_it_barks(manager: socket.socket) -> None:
    """A loop that hangs is restarted by systemd; one that works is not."""
    environ = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "90000", "WATCHDOG_PID": str(os.getpid())}
    notifier = Notifier(environ)
    assert notifier.watchdog_s == 0.09
    task = asyncio.create_task(notifier.ping_watchdog())
    for _ in range(3):
        assert await asyncio.to_thread(manager.recv, 99) == b"WATCHDOG=1"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_without_systemd_nothing_is_sent_and_nothing_waits() -> None:
    """An embedded agent; and one whose parent's watchdog variables leaked into its environment."""
    notifier = Notifier({"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"})
    notifier.ready()
    await notifier.ping_watchdog()


def test_a_manager_that_is_gone_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """systemd re-executes itself: the agent goes on."""
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    notifier.ready()
    notifier.stopping()
    assert len(caplog.records) == 1


def test_an_abstract_socket_is_understood() -> None:
    """Containers with systemd inside."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        name = f"kp-test-notify-{os.getpid()}"
        listening.bind("\0" + name)
        Notifier({"NOTIFY_SOCKET": "@" + name}).ready()
        assert listening.recv(99) == b"READY=1"
