"""The client behind the module-level functions: made when first needed, one per endpoint."""

import atexit
import os
import threading

from kernpool.endpoint import find_endpoint
from kernpool.sdk.client import Client

_lock = threading.Lock()
_client: Client | None = None


def default_client(*, start: bool = False) -> Client:
    """Give the default client; `start`: start this machine's coordinator when none is named and none runs.

    Raises NotRunningError, StartError, KernpoolError.
    """
    global _client
    with _lock:
        if start and may_start():
            from kernpool.embedded.start import ensure_running

            ensure_running()
        endpoint = find_endpoint()
        if _client is None or _client.transport.closed or _client.endpoint != endpoint:
            _client = Client(endpoint=endpoint)
            atexit.register(_client.close)
        return _client


def may_start() -> bool:
    """Say whether this machine's own coordinator is meant and may be started by itself."""
    return not os.environ.get("KERNPOOL_API_URL") and os.environ.get("KERNPOOL_NO_START", "") in ("", "0")
