"""Runs this package's own helper programs (`python -m ...`) in processes that see the same modules as this one."""

import asyncio
import os
import sys


async def run_module(module: str, *arguments: str, timeout_s: float) -> tuple[int, bytes, str]:
    """Run a module to its end; return exit status, output and the end of its errors. TimeoutError, OSError."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), timeout_s)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, out, err.decode(errors="replace").strip()[-2000:]
