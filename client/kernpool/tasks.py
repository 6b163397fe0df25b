"""What may stand for a task where one is submitted: a Task, a file's path, or plain data."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from kernpool.errors import KernpoolError

if TYPE_CHECKING:
    from kernpool.spec import Task

TaskLike: TypeAlias = "Task | str | PathLike[str] | Mapping[str, Any]"


def task_document(task: TaskLike) -> Mapping[str, Any]:
    """Give a task as plain data; a path is read and checked here, plain data by the coordinator alone.

    Raises:
        SpecError: the file is no valid task.
        KernpoolError: the file cannot be read.
    """
    if isinstance(task, Mapping):
        return task
    if isinstance(task, str | PathLike):
        from kernpool.spec import load_task

        try:
            return load_task(Path(task)).to_document()
        except OSError as error:
            raise KernpoolError(f"Cannot read the task file {task}: {error.strerror}.") from error
    return task.to_document()
