"""The task specification: the YAML file that a person writes, read, checked and explained."""

from kernpool.spec.demand import Demand
from kernpool.spec.errors import SpecError, SpecProblem
from kernpool.spec.loader import load_task, parse_task
from kernpool.spec.resources import Resources
from kernpool.spec.task import Task

__all__ = ["Demand", "Resources", "SpecError", "SpecProblem", "Task", "load_task", "parse_task"]
