"""Waking up when a directory changes: one inotify instance for all job logs of the node, without polling.

A watch is armed for one event only (IN_ONESHOT), so a job that writes without pause costs its followers one wake-up
per read, not one per write.
"""

import asyncio
import contextlib
import ctypes
import errno
import logging
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, final

_log = logging.getLogger(__name__)

_IN_MODIFY: Final = 0x2
_IN_MOVED_TO: Final = 0x80
_IN_CREATE: Final = 0x100
_IN_ONESHOT: Final = 0x80000000
_MASK: Final = _IN_MODIFY | _IN_MOVED_TO | _IN_CREATE | _IN_ONESHOT
_EVENT: Final = struct.Struct("iIII")
_READ_BYTES: Final = 64 * 1024
FALLBACK_INTERVAL_S: Final = 0.25
"""How often a follower looks by itself where the kernel gives no watch (fs.inotify limits used up by others)."""


@final
class DirectoryWatch:
    """Wakes waiters of a directory when a file in it is written, made or renamed into place."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._open()
        self._directory_of: dict[int, Path] = {}
        """Armed watch descriptor -> directory."""
        self._waiters: dict[Path, set[asyncio.Future[None]]] = {}
        """Directory -> those who wait for its next change."""
        if self._fd >= 0:
            loop.add_reader(self._fd, self._on_readable)

    def _open(self) -> int:
        fd = int(self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
        if fd < 0:
            _log.warning(
                "no inotify (%s): followers of job logs look every %s s; raise fs.inotify.max_user_instances",
                errno.errorcode.get(ctypes.get_errno(), "?"),
                FALLBACK_INTERVAL_S,
            )
        return fd

    @contextlib.contextmanager
    def armed(self, directory: Path) -> Iterator[asyncio.Future[None]]:
        """Give a future that is done at the directory's next change; look at the files after arming, then await it."""
        changed: asyncio.Future[None] = self._loop.create_future()
        waiters = self._waiters.setdefault(directory, set())
        waiters.add(changed)
        timer = None if self._arm(directory) else self._loop.call_later(FALLBACK_INTERVAL_S, _done, changed)
        try:
            yield changed
        finally:
            changed.cancel()
            waiters.discard(changed)
            if not waiters and self._waiters.get(directory) is waiters:
                del self._waiters[directory]
            if timer is not None:
                timer.cancel()

    def wake(self, directory: Path) -> None:
        """Wake the waiters of a directory for a change that no file shows (an attempt ended)."""
        for waiter in self._waiters.pop(directory, ()):
            _done(waiter)

    def close(self) -> None:
        """Give the descriptor back; those who still wait are woken."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
        for directory in list(self._waiters):
            self.wake(directory)

    def _arm(self, directory: Path) -> bool:
        if self._fd < 0:
            return False
        descriptor = int(self._libc.inotify_add_watch(self._fd, os.fsencode(directory), ctypes.c_uint32(_MASK)))
        if descriptor < 0:
            return False
        self._directory_of[descriptor] = directory
        return True

    def _on_readable(self) -> None:
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return
        at = 0
        while at < len(data):
            descriptor, _mask, _cookie, name_bytes = _EVENT.unpack_from(data, at)
            at += _EVENT.size + name_bytes
            directory = self._directory_of.pop(descriptor, None)
            if directory is not None:
                self.wake(directory)


def _done(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
