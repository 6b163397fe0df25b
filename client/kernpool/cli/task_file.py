"""Reading a task file for the command line: pydantic and YAML are imported here, where there is a file to read."""

from collections.abc import Mapping
from typing import Any

from kernpool.cli.errors import TaskFileError
from kernpool.spec import SpecError, SpecProblem, Task
from kernpool.spec.document import read_documents
from kernpool.spec.loader import check_task, parse_task, unbuilt_problems


def read_task(text: bytes, name: str) -> Task:
    """Check a task file, also for what is not built yet. Raises TaskFileError with every problem at its place."""
    try:
        task = parse_task(text)
        problems = unbuilt_problems(task, read_documents(text)[0])
    except SpecError as error:
        problems = error.problems
    if problems:
        raise _error(name, problems)
    return task


def with_options(task: Task, fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Lay fields of the command line over a task. Raises TaskFileError."""
    document = task.to_document() | dict(fields)
    try:
        whole = check_task(document) if fields else task
    except SpecError as error:
        raise _error("the options", error.problems) from None
    if missing := whole.missing_variables():
        say = " ".join(f"--secret {name}" if name in whole.secrets else f"--env {name}=VALUE" for name in missing)
        problem = SpecProblem(f"{', '.join(missing)}: the file leaves {_them(missing)} to you: say {say}")
        raise _error(name, [problem])
    return whole.to_document()


def _them(names: list[str]) -> str:
    return "it" if len(names) == 1 else "them"


def _error(name: str, problems: list[SpecProblem]) -> TaskFileError:
    lines = [f"{name}:{problem}" if problem.line else f"{name}: {problem}" for problem in problems]
    return TaskFileError("\n".join([*lines, "Nothing was submitted."]), code="invalid")
