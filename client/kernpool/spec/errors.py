"""What can be wrong with a task file, each problem with its place."""

from dataclasses import dataclass
from typing import Any, final


@final
@dataclass(frozen=True, slots=True)
class SpecProblem:
    """One problem of a task file."""

    message: str
    """What was found, what was expected, and a near match where there is one."""
    key: str = ""
    """Dotted path of the key, e.g. `resources.accelerators`; empty: the file as a whole."""
    line: int = 0
    """From 1; 0 when the task did not come from a file."""
    column: int = 0
    """From 1; 0 when the task did not come from a file."""

    def as_detail(self) -> dict[str, Any]:
        """Give the problem as the API's Problem.details carry it."""
        return {"line": self.line, "column": self.column, "key": self.key, "message": self.message}

    def __str__(self) -> str:
        key = f"{self.key}: " if self.key else ""
        return f"{self.line}:{self.column}: {key}{self.message}" if self.line else f"{key}{self.message}"


class SpecError(ValueError):
    """A task file is not valid, or asks for what is not built yet; nothing was created."""

    def __init__(self, problems: list[SpecProblem], *, source: str = "") -> None:
        self.problems = problems
        self.source = source
        super().__init__("\n".join(f"{source}:{problem}" if source else str(problem) for problem in problems))
