"""The agent's side of the GPU worker: starts it when first asked, gives each call a deadline, kills what hangs."""

import asyncio
import contextlib
import itertools
import json
import logging
import sys
from dataclasses import dataclass, field
from typing import Any, final

from kernpool_agent.errors import GpuError
from kernpool_agent.gpu import library
from kernpool_agent.gpu.names import short_name
from kernpool_agent.gpu.readings import Reading
from kernpool_mesh.messages import Gpu

log = logging.getLogger(__name__)

ANSWER_BYTES_MAX = 1 << 20
KILL_TIMEOUT_S = 2.0
NO_GPU_CODES = frozenset({9, 12})
"""NVML: driver not loaded, library not found. A machine without a GPU may have the library: no fault, only told."""


@final
@dataclass(frozen=True, slots=True)
class GpuInventory:
    """What NVML says is here."""

    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    problems: tuple[str, ...] = ()
    """One sentence each, for the node's facts."""


@final
@dataclass(frozen=True, slots=True)
class GpuSample:
    """Momentary values of one GPU; a value is absent where the card has none or failed."""

    index: int
    uuid: str
    readings: dict[str, Reading] = field(default_factory=dict)


@final
class GpuClient:
    """One worker at most. One call at a time: NVML serialises inside the driver anyway."""

    def __init__(self, call_timeout_s: float, *, enabled: bool = True) -> None:
        self._call_timeout_s = call_timeout_s
        self._enabled = enabled
        self._process: asyncio.subprocess.Process | None = None
        self._stuck: asyncio.subprocess.Process | None = None
        """Killed, but not gone: it hangs inside the driver. No second one is started beside it."""
        self._ids = itertools.count(1)
        self._lock = asyncio.Lock()
        self.workers_started = 0
        self.workers_killed = 0

    async def inventory(self) -> GpuInventory:
        """Return the GPUs; without NVML there are none. Never raises: what fails is among the problems."""
        if not self._enabled or not library.present():
            return GpuInventory()
        try:
            answer = await self._call("inventory")
        except GpuError as error:
            return GpuInventory(problems=(str(error),))
        failed = answer.get("failed")
        if failed is not None:
            reading = Reading.from_json(failed)
            return GpuInventory(problems=(f"GPUs cannot be listed: NVML says {reading}",))
        gpus = [_gpu(entry) for entry in answer["gpus"]]
        problems = tuple(problem for entry in answer["gpus"] for problem in _problems(entry))
        return GpuInventory(tuple(gpus), str(Reading.from_json(answer["driver"])), problems)

    async def sample(self) -> list[GpuSample]:
        """Return momentary values of each GPU. Raises GpuError when the worker does not answer."""
        if not self._enabled or not library.present():
            return []
        answer = await self._call("sample")
        return [_sample(entry) for entry in answer.get("gpus", [])]

    async def close(self) -> None:
        """End the worker."""
        async with self._lock:
            await self._kill()

    async def _call(self, call: str) -> dict[str, Any]:
        async with self._lock:
            process = await self._worker()
            request_id = next(self._ids)
            try:
                async with asyncio.timeout(self._call_timeout_s):
                    return await _ask(process, request_id, call)
            except TimeoutError:
                await self._kill()
                raise GpuError(
                    f"the NVIDIA driver did not answer within {self._call_timeout_s:g} s; its worker was killed"
                ) from None
            except (OSError, ValueError, EOFError) as error:
                await self._kill()
                raise GpuError(f"the GPU worker died ({error}); see the agent's log") from error
            except asyncio.CancelledError:
                await self._kill()  # its answer would be taken for that of the next call
                raise

    async def _worker(self) -> asyncio.subprocess.Process:
        if self._stuck is not None:
            if self._stuck.returncode is None:
                raise GpuError("the NVIDIA driver hangs: a killed worker is still inside it; the node needs a reboot")
            self._stuck = None
        if self._process is None or self._process.returncode is not None:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "kernpool_agent.gpu.worker",
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    limit=ANSWER_BYTES_MAX,
                )
            except OSError as error:
                raise GpuError(f"the GPU worker cannot be started: {error.strerror}") from error
            self.workers_started += 1
        return self._process

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        self.workers_killed += 1
        try:
            async with asyncio.timeout(KILL_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            log.warning("the GPU worker %d does not die: it hangs inside the driver", process.pid)
            self._stuck = process


async def _ask(process: asyncio.subprocess.Process, request_id: int, call: str) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps({"id": request_id, "call": call}).encode() + b"\n")
    await process.stdin.drain()
    line = await process.stdout.readline()
    if not line:
        raise EOFError("it closed its output")
    answer: dict[str, Any] = json.loads(line)
    if answer.get("id") != request_id:
        raise ValueError(f"it answered request {answer.get('id')} instead of {request_id}")
    return answer


def _gpu(entry: dict[str, Any]) -> Gpu:
    uuid, name, memory = (Reading.from_json(entry[key]) for key in ("uuid", "name", "memory_bytes"))
    return Gpu(
        index=entry["index"],
        uuid=str(uuid.value or ""),
        name=short_name(str(name.value)) if name.value else "unknown",
        memory_mib=int(memory.value or 0) >> 20,
        # Unsupported is no fault: cards with coherent memory have no memory of their own to tell.
        healthy=not (uuid.error or name.error or memory.error),
    )


def _problems(entry: dict[str, Any]) -> list[str]:
    readings = {key: Reading.from_json(value) for key, value in entry.items() if isinstance(value, dict)}
    return [f"GPU {entry['index']}: {key}: {reading.error}" for key, reading in readings.items() if reading.error]


def _sample(entry: dict[str, Any]) -> GpuSample:
    readings = {key: Reading.from_json(value) for key, value in entry.items() if isinstance(value, dict)}
    uuid = readings.pop("uuid", Reading())
    return GpuSample(entry["index"], str(uuid.value or ""), readings)
