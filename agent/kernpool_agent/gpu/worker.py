"""The worker process: `python -m kernpool_agent.gpu.worker` answers one JSON line per request line until EOF.

Requests: `{"id": 1, "call": "inventory" | "sample"}`. Answers carry the id and either `failed` (NVML as a whole
does not work) or `driver` and `gpus`, each value as a Reading. Only this process ever opens libnvidia-ml.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import pynvml

from kernpool_agent.gpu.readings import Reading

_UNSUPPORTED = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

_INVENTORY: dict[str, Callable[[Any], Any]] = {
    "uuid": pynvml.nvmlDeviceGetUUID,
    "name": pynvml.nvmlDeviceGetName,
    "memory_bytes": lambda handle: pynvml.nvmlDeviceGetMemoryInfo(handle).total,
}
_SAMPLE: dict[str, Callable[[Any], Any]] = {
    "uuid": pynvml.nvmlDeviceGetUUID,
    "memory_used_bytes": lambda handle: pynvml.nvmlDeviceGetMemoryInfo(handle).used,
    "utilization_ratio": lambda handle: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
    "temperature_celsius": lambda handle: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
    "power_watts": lambda handle: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
}
CALLS = {"inventory": _INVENTORY, "sample": _SAMPLE}


def read(call: Callable[..., Any], *arguments: Any) -> Reading:
    """Make one NVML call and say what came of it."""
    try:
        value = call(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _UNSUPPORTED:
            return Reading(unsupported=True)
        return Reading(error=str(error), error_code=int(error.value))
    return Reading(value.decode("utf-8", "replace") if isinstance(value, bytes) else value)


def answer(call: str) -> dict[str, Any]:
    """Return the body of the answer to `call`."""
    questions = CALLS[call]
    started = read(pynvml.nvmlInit)
    if started.error or started.unsupported:
        return {"failed": started.to_json()}
    try:
        count = read(pynvml.nvmlDeviceGetCount)
        if not isinstance(count.value, int):
            return {"failed": count.to_json()}
        gpus = [_gpu(index, questions) for index in range(count.value)]
        return {"driver": read(pynvml.nvmlSystemGetDriverVersion).to_json(), "gpus": gpus}
    finally:
        read(pynvml.nvmlShutdown)  # so that a GPU that comes or goes is seen by the next call


def _gpu(index: int, questions: dict[str, Callable[[Any], Any]]) -> dict[str, Any]:
    handle = read(pynvml.nvmlDeviceGetHandleByIndex, index)
    if handle.error or handle.unsupported:
        return {"index": index} | {name: handle.to_json() for name in questions}
    return {"index": index} | {name: read(question, handle.value).to_json() for name, question in questions.items()}


def main() -> None:
    """Answer until the agent closes our stdin."""
    for line in sys.stdin:
        request = json.loads(line)
        body = {"id": request["id"]} | answer(request["call"])
        sys.stdout.write(json.dumps(body) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
