"""One task: what a person wants to run, where it may run and with what around it."""

import re
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, ModelWrapValidatorHandler, PrivateAttr, field_validator, model_validator

from kernpool.spec.demand import Demand
from kernpool.spec.resources import Resources, SpecModel
from kernpool.spec.unbuilt import unbuilt_features

ENV_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


def _environment(value: Any) -> dict[str, str | None]:
    """Read `envs`: numbers and true/false become the text that Python gives them, as SkyPilot does."""
    if not isinstance(value, dict):
        raise ValueError(f"expected a map of names to texts, found {value!r}")
    for name, content in value.items():
        if not ENV_NAME.match(name):
            raise ValueError(f"{name!r} is not a variable's name: expected letters, digits and _")
        if isinstance(content, dict | list):
            raise ValueError(f"{name}: expected a text, found {content!r}")
        if isinstance(content, str) and "\0" in content:
            raise ValueError(f"{name}: a NUL character cannot stand in a variable")
    return {name: None if content is None else str(content) for name, content in value.items()}


def _secrets(value: Any) -> dict[str, str | None]:
    if isinstance(value, list):
        return {f"secrets:{str(item).removeprefix('secrets:')}": None for item in value}
    return _environment(value)


def _empty_is_none(value: Any) -> Any:
    return None if value == {} else value


class Task(SpecModel):
    """A task as its YAML file says it; `to_document()` gives it back as plain data."""

    name: Annotated[str | None, Field(max_length=120)] = None
    workdir: str | dict[str, Any] | None = None
    num_nodes: Annotated[int, Field(ge=1, le=100_000)] = 1
    resources: Resources = Resources()
    file_mounts: Annotated[dict[str, Any] | None, BeforeValidator(_empty_is_none)] = None
    volumes: Annotated[dict[str, Any] | None, BeforeValidator(_empty_is_none)] = None
    setup: str | None = None
    run: str | None = None
    envs: Annotated[dict[str, str | None], BeforeValidator(lambda v: _environment(v or {}))] = Field(default={})
    secrets: Annotated[dict[str, str | None], BeforeValidator(lambda v: _secrets(v or {}))] = Field(
        default={}, repr=False
    )
    managed_secrets: list[str] | dict[str, Any] | None = None
    service: dict[str, Any] | None = None
    pool: dict[str, Any] | None = None
    config: Annotated[dict[str, Any] | None, BeforeValidator(_empty_is_none)] = None
    api_server_access: bool | None = None
    event_callback: str | None = None
    inputs: dict[str, Any] | None = None
    outputs: dict[str, Any] | None = None

    _document: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _keep_document(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        task = handler(data)
        if isinstance(data, dict):
            task._document = {key: value for key, value in data.items() if value is not None}
        return task

    @field_validator("resources", mode="before")
    @classmethod
    def _no_resources(cls, value: Any) -> Any:
        return {} if value is None else value

    @field_validator("setup", "run")
    @classmethod
    def _no_nul(cls, value: str | None) -> str | None:
        if value is not None and "\0" in value:
            raise ValueError("a NUL character cannot stand in a command")
        return value

    @model_validator(mode="after")
    def _check_service(self) -> Self:
        if self.service is not None and self.pool is not None:
            raise ValueError("`service` and `pool` exclude each other: give one of them")
        return self

    def to_document(self) -> dict[str, Any]:
        """Give the task as plain data that `Task.model_validate` takes again (secrets included: handle with care)."""
        return dict(self._document)

    def replace(self, **fields: Any) -> "Task":
        """Make the same task with some top-level fields changed, checked anew."""
        return Task.model_validate({**self._document, **fields})

    def with_environment(self, envs: dict[str, str], secrets: dict[str, str]) -> "Task":
        """Make the same task with variables from the command line laid over its own."""
        fields: dict[str, Any] = {}
        if envs:
            fields["envs"] = {**self.envs, **envs}
        if secrets:
            fields["secrets"] = {**self.secrets, **secrets}
        return self.replace(**fields) if fields else self

    def demands(self) -> list[Demand]:
        """Give what each node must offer, best alternative first; never empty."""
        return self.resources.demands()

    @property
    def priority(self) -> int:
        """Higher goes first; 0 when the task does not say."""
        return self.resources.priority or 0

    def missing_variables(self) -> list[str]:
        """Name the variables that the file leaves to the caller (null) and nobody gave."""
        both = {**self.envs, **self.secrets}
        return [name for name, content in both.items() if content is None and not name.startswith("secrets:")]

    def unbuilt(self) -> dict[tuple[str | int, ...], str]:
        """Name what the task asks for that Kernpool understands but does not do yet, by key."""
        return unbuilt_features(self)
