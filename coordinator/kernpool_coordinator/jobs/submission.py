"""From a SubmitJob body to a job: checked again here, because the body may come from any program."""

import json
from dataclasses import dataclass
from typing import Any, Final, final

from kernpool.bodies import SubmitJob
from kernpool.spec import SpecError, Task
from kernpool.spec.loader import check_task, unbuilt_problems
from kernpool_coordinator.errors import InvalidError, TooLargeError
from kernpool_coordinator.placement import Ask

TASK_BYTES_MAX: Final = 1 << 20
"""Of a task document; it must also fit into one message to a node."""


@final
@dataclass(frozen=True, slots=True)
class Submission:
    """A task that may be run as it is."""

    name: str
    num_nodes: int
    priority: int
    asks: tuple[Ask, ...]
    document: str
    """JSON, without secrets."""
    secrets: dict[str, str]
    error_tries: int
    recover_codes: frozenset[int]


def check_submission(body: SubmitJob) -> Submission:
    """Check a task document. Raises InvalidError with a detail for each problem, TooLargeError."""
    task = _checked(body.task)
    document = task.to_document()
    document.pop("secrets", None)
    # YAML numbers in envs are texts for whoever runs: keep what the check made of them.
    document["envs"] = {name: value for name, value in task.envs.items() if value is not None}
    text = json.dumps(document, default=str)
    size = len(text) + sum(len(name) + len(value or "") for name, value in task.secrets.items())
    if size > TASK_BYTES_MAX:
        raise TooLargeError(f"the task has {size} bytes, at most {TASK_BYTES_MAX} are taken")
    recovery = task.resources.job_recovery or {}
    codes = recovery.get("recover_on_exit_codes", [])
    return Submission(
        name=task.name or "job",
        num_nodes=task.num_nodes,
        priority=task.priority,
        asks=tuple(Ask.from_demand(demand) for demand in task.demands()),
        document=text,
        secrets={name: value for name, value in task.secrets.items() if value is not None},
        error_tries=_count(recovery.get("max_restarts_on_errors", 0)),
        recover_codes=frozenset(codes if isinstance(codes, list) else [codes]),
    )


def _checked(document: dict[str, Any]) -> Task:
    try:
        task = check_task(document)
    except SpecError as error:
        details = [problem.as_detail() for problem in error.problems]
        raise InvalidError("the task is not valid: nothing was created", details=details) from None
    problems = unbuilt_problems(task)
    if problems:
        details = [problem.as_detail() for problem in problems]
        raise InvalidError("the task asks for what is not built yet: nothing was created", details=details)
    missing = task.missing_variables()
    if missing:
        names = ", ".join(missing)
        raise InvalidError(f"the task leaves {names} to the caller", hint=f"--env {missing[0]}=VALUE")
    return task


def _count(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise InvalidError(f"job_recovery.max_restarts_on_errors: expected a number from 0 on, found {value!r}")
