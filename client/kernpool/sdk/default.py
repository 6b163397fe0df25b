"""The client behind the module-level functions: made when first needed, one for the coordinator that is meant now."""

import atexit
import os
import threading
import time
from typing import Final

from kernpool.endpoint import find_endpoint
from kernpool.sdk.client import Client

CHECK_S: Final = 1.0
"""Files and processes of this machine's coordinator are looked at so often; in between a call costs nothing more."""

_lock = threading.Lock()
_client: Client | None = None
_checked: tuple[object, float] = (None, 0.0)
"""(What was meant, when it was looked at last.)"""


def default_client(*, start: bool = False) -> Client:
    """Give the default client; `start`: start this machine's coordinator when none is named and none runs.

    Raises NotRunningError, StartError, KernpoolError.
    """
    global _client, _checked
    with _lock:
        meant = (start, *map(os.environ.get, ("KERNPOOL_API_URL", "KERNPOOL_API_TOKEN", "KERNPOOL_HOME")))
        is_fresh = _checked[0] == meant and time.monotonic() - _checked[1] < CHECK_S
        if _client is not None and not _client.transport.closed and is_fresh:
            return _client
        if start:
            ensure_started()
        endpoint = find_endpoint()
        if _client is None or _client.transport.closed or _client.endpoint != endpoint:
            _client = Client(endpoint=endpoint)
            atexit.register(_client.close)
        _checked = (meant, time.monotonic())
        return _client


def ensure_started() -> None:
    """Start this machine's coordinator where that is meant and allowed and none runs. Raises StartError."""
    if may_start():
        from kernpool.embedded.start import ensure_running

        ensure_running()


def may_start() -> bool:
    """Say whether this machine's own coordinator is meant and may be started by itself."""
    return not os.environ.get("KERNPOOL_API_URL") and os.environ.get("KERNPOOL_NO_START", "") in ("", "0")
