"""From a file or a text to a checked Task, with every problem at its line and column."""

import difflib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from kernpool.spec.document import Document, dotted, read_documents
from kernpool.spec.document import Path as KeyPath
from kernpool.spec.errors import SpecError, SpecProblem
from kernpool.spec.resources import Alternative, Resources
from kernpool.spec.task import Task

HEADER_KEYS = {"name", "execution", "primary_tasks", "termination_delay", "inter_connection"}
UNION_BRANCHES = {"Alternative", "str"}
EXPECTED = {
    "string_type": "a text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "dict_type": "a map",
    "list_type": "a list",
    "model_type": "a map",
    "int_from_float": "a whole number",
}


def load_task(path: str | Path) -> Task:
    """Read a task file.

    Raises:
        SpecError: the file is not a valid task; each problem has line and column.
        OSError: the file cannot be read.
    """
    file = Path(path)
    try:
        return parse_task(file.read_bytes())
    except SpecError as error:
        raise SpecError(error.problems, source=str(path)) from None


def parse_task(text: bytes | str) -> Task:
    """Read a task from YAML text. Raises SpecError with line and column."""
    documents = read_documents(text)
    if len(documents) > 1:
        raise SpecError([_several_documents(documents)])
    document = documents[0]
    if not isinstance(document.data, dict):
        line, column = document.place(())
        message = f"expected a map of keys like `run: COMMAND`, found {_shown(document.data)}"
        raise SpecError([SpecProblem(message, line=line, column=column)])
    return check_task(document.data, document)


def check_task(data: Any, document: Document | None = None) -> Task:
    """Check plain data as a task; `document` lends the places. Raises SpecError."""
    try:
        return Task.model_validate(data)
    except ValidationError as error:
        problems = [_problem(item, document) for item in error.errors(include_url=False)]
        raise SpecError(_without_union_noise(problems)) from None


def unbuilt_problems(task: Task, document: Document | None = None) -> list[SpecProblem]:
    """List what the task asks for that is not built yet, each at its place."""
    return [_located(path, message, document) for path, message in task.unbuilt().items()]


def _several_documents(documents: list[Document]) -> SpecProblem:
    header = documents[0].data
    is_group = isinstance(header, dict) and header.get("execution") == "parallel" and set(header) <= HEADER_KEYS
    what = "job groups" if is_group else "pipelines of several tasks"
    line, column = documents[1].place(())
    return SpecProblem(f"not built yet: {what}; give one task a file", line=line, column=column)


def _problem(item: Any, document: Document | None) -> SpecProblem:
    path = _yaml_path(item["loc"])
    kind, found = item["type"], _shown(item.get("input"))
    if kind == "extra_forbidden":
        return _located(path, _unknown_key(path), document)
    if kind in EXPECTED:
        return _located(path, f"expected {EXPECTED[kind]}, found {found}", document)
    if kind == "value_error":
        return _located(path, str(item["ctx"]["error"]), document)
    if kind == "literal_error":
        return _located(path, f"expected {item['ctx']['expected']}, found {found}", document)
    return _located(path, f"{item['msg'][:1].lower()}{item['msg'][1:]}, found {found}", document)


def _yaml_path(location: tuple[str | int, ...]) -> KeyPath:
    """Drop the steps that pydantic adds for branches of a union."""
    return tuple(part for part in location if isinstance(part, int) or not ("[" in part or part in UNION_BRANCHES))


def _without_union_noise(problems: list[SpecProblem]) -> list[SpecProblem]:
    """Of the messages about one key keep the first: the others tell of the union's other branches."""
    kept: dict[str, SpecProblem] = {}
    for problem in problems:
        kept.setdefault(problem.key, problem)
    branches = [key for key in kept if any(other != key and other.startswith((f"{key}.", f"{key}[")) for other in kept)]
    return [problem for key, problem in kept.items() if key not in branches or not key]


def _unknown_key(path: KeyPath) -> str:
    known = _known_keys(path[:-1])
    near = difflib.get_close_matches(str(path[-1]), known, n=1)
    if near:
        return f"unknown key: did you mean `{near[0]}`?"
    return f"unknown key: expected one of {', '.join(sorted(known))}"


def _known_keys(path: KeyPath) -> list[str]:
    model: type[BaseModel] = Task
    if path[:1] == ("resources",):
        model = Alternative if len(path) > 1 else Resources
    return [*model.model_fields, *(["gpus"] if model is not Task else [])]


def _located(path: KeyPath, message: str, document: Document | None) -> SpecProblem:
    if document and path[-1:] == ("accelerators",) and (*path[:-1], "gpus") in document.places:
        path = (*path[:-1], "gpus")
    line, column = document.place(path) if document else (0, 0)
    return SpecProblem(message, dotted(path), line, column)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
