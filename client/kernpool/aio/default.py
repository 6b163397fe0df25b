"""The client behind the module-level functions of `kernpool.aio`: one for each event loop."""

import asyncio
from weakref import WeakKeyDictionary

from kernpool.aio.client import Client
from kernpool.endpoint import find_endpoint

_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, Client] = WeakKeyDictionary()


async def default_client(*, start: bool = False) -> Client:
    """Give this loop's client; `start`: start this machine's coordinator when none is named and none runs.

    Raises NotRunningError, StartError, KernpoolError.
    """
    if start:
        from kernpool.sdk.default import ensure_started

        await asyncio.to_thread(ensure_started)
    endpoint = find_endpoint()
    loop = asyncio.get_running_loop()
    client = _clients.get(loop)
    if client is None or client.transport.closed or client.endpoint != endpoint:
        if client is not None:
            await client.close()
        client = _clients[loop] = Client(endpoint=endpoint)
    return client


async def close() -> None:
    """Close this loop's default client; without it aiohttp warns at the end of the program."""
    client = _clients.pop(asyncio.get_running_loop(), None)
    if client is not None:
        await client.close()
