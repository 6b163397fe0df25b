"""One start or stop at a time: a lock file, waited for with a deadline."""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from typing import Final

from kernpool.embedded.layout import Home
from kernpool.embedded.processes import poll_until
from kernpool.errors import StartError

WAIT_S: Final = 90.0


@contextlib.contextmanager
def held(home: Home, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock; `on_wait` is called once where another has it. Raises StartError."""
    try:
        lock_fd = os.open(home.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StartError(f"Cannot use {home.lock_file}: {error.strerror}.") from error
    try:
        _take(lock_fd, home, on_wait)
        yield
    finally:
        os.close(lock_fd)


def _take(lock_fd: int, home: Home, on_wait: Callable[[], None]) -> None:
    told = False
    for _ in poll_until(time.monotonic() + WAIT_S):
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not told:
                on_wait()
            told = True
        else:
            return
    raise StartError(f"Another `kernpool api start` or `stop` has held {home.lock_file} for {WAIT_S:.0f} s.")
