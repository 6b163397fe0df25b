"""What this machine can do, found out by looking and by asking the parts that would do it, in other processes."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from kernpool.embedded.processes import child_environment

PROBE_TIMEOUT_S: Final = 40.0
ANSWER_BYTES_MAX: Final = 1 << 20


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that works here or not."""

    what: str
    works: bool
    summary: str
    problems: tuple[str, ...]
    """Sentences: what does not work, and what to do about it."""


def jobs() -> Finding:
    """Say whether jobs can run: they need kp-init, which is built at installation."""
    answer, trouble = ask("kernpool_sandbox.kpinit.binary")
    if answer is None:
        return Finding("jobs", works=False, summary="kp-init cannot be run", problems=(trouble,))
    return Finding("jobs", works=True, summary="process trees with a log of their own", problems=())


def sandboxes() -> Finding:
    """Say what isolation works here."""
    answer, trouble = ask("kernpool_sandbox.isolation")
    if not isinstance(answer, dict):
        return Finding("sandboxes", works=False, summary="this could not be found out", problems=(trouble,))
    problems = tuple(str(problem) for problem in answer.get("problems") or ())
    if not answer.get("isolation"):
        return Finding("sandboxes", works=False, summary="no isolation works here", problems=problems)
    limits = f"cgroup {answer.get('cgroup')}" if answer.get("limits") == "cgroup" else "rlimits"
    users = "a range of ids each" if answer.get("uids") == "range" else "your own id"
    summary = f"namespace (shares this kernel), limits by {limits}, users: {users}"
    return Finding("sandboxes", works=True, summary=summary, problems=problems)


def gpus(root: Path = Path("/")) -> Finding:
    """Say which GPUs the NVIDIA driver tells of."""
    found = [_gpu_name(file) for file in sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))]
    if found:
        return Finding("gpus", works=True, summary=", ".join(found), problems=())
    if (root / "proc/driver/nvidia").is_dir():
        return Finding("gpus", works=False, summary="the NVIDIA driver is loaded but has no GPU", problems=())
    return Finding("gpus", works=False, summary="no NVIDIA driver is loaded", problems=())


def _gpu_name(file: Path) -> str:
    try:
        lines = file.read_text("utf-8", "replace").splitlines()
    except OSError:
        return "unknown GPU"
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "Model":
            return value.strip()
    return "unknown GPU"


def ask(module: str, *arguments: str) -> tuple[Any, str]:
    """Run a module of ours in a process of its own: (its JSON or its text, "") or (None, why not)."""
    command = (sys.executable, "-P", "-m", module, *arguments)
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=PROBE_TIMEOUT_S, check=False, cwd="/", env=child_environment()
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"{module}: {error}"
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
        return None, lines[-1]
    text = done.stdout[:ANSWER_BYTES_MAX].decode("utf-8", "replace")
    try:
        return json.loads(text), ""
    except ValueError:
        return text, ""
