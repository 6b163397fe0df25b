"""Running a few coroutines together: the first failure ends the others, and nobody is left behind."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def together(*work: Coroutine[Any, Any, None]) -> None:
    """Run all of them; returns when all are done, raises the first error (the error itself, no group) at once."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        await _ended(tasks)


async def until_first(lasting: Coroutine[Any, Any, None], deciding: Coroutine[Any, Any, None]) -> None:
    """Run both until `deciding` is done; an error of either ends both, an early end of `lasting` ends nothing."""
    tasks = [asyncio.create_task(lasting), asyncio.create_task(deciding)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            tasks[0].result()
        await tasks[1]
    finally:
        await _ended(tasks)


async def _ended(tasks: "list[asyncio.Task[None]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
