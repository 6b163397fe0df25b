"""The `resources:` block of a task, in every form that SkyPilot's files use."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from kernpool.spec import quantities
from kernpool.spec.demand import Demand
from kernpool.spec.quantities import Accelerators, Amount


def _autostop(value: Any) -> dict[str, Any]:
    match value:
        case bool():
            return {"idle_minutes": 5} if value else {}
        case dict():
            unknown = set(value) - {"idle_minutes", "down", "wait_for", "hook", "hook_timeout"}
            if unknown:
                raise ValueError(f"unknown key {min(unknown)!r}: expected idle_minutes, down or wait_for")
            return value
        case _:
            return {"idle_minutes": quantities.duration_minutes(value)}


def _job_recovery(value: Any) -> dict[str, Any]:
    match value:
        case str():
            return {"strategy": value}
        case dict():
            unknown = set(value) - {"strategy", "max_restarts_on_errors", "recover_on_exit_codes"}
            if unknown:
                raise ValueError(
                    f"unknown key {min(unknown)!r}: expected strategy, max_restarts_on_errors or recover_on_exit_codes"
                )
            return value
        case _:
            raise ValueError(f"expected a strategy's name or a map, found {value!r}")


def _text_or_map(value: Any) -> Any:
    if not isinstance(value, str) and not (isinstance(value, dict) and all(isinstance(v, str) for v in value.values())):
        raise ValueError(f"expected an image's name or a map of region to image, found {value!r}")
    return value


class SpecModel(BaseModel):
    """Base of the task's models: unknown keys are refused, nothing changes after it was checked."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)


class ResourceFields(SpecModel):
    """The fields that stand both in `resources` and in each of its alternatives."""

    infra: str | None = None
    cloud: str | None = None
    region: str | None = None
    zone: str | None = None
    accelerators: Annotated[Accelerators | None, BeforeValidator(lambda v: v and quantities.accelerators(v))] = None
    accelerator_args: dict[str, Any] | None = None
    cpus: Annotated[Amount | None, BeforeValidator(lambda v: None if v is None else quantities.cpus(v))] = None
    memory: Annotated[Amount | None, BeforeValidator(lambda v: None if v is None else quantities.memory_gib(v))] = None
    instance_type: str | None = None
    use_spot: bool | None = None
    max_hourly_cost: Annotated[float | None, Field(gt=0, strict=False)] = None
    local_disk: str | None = None
    disk_size: Annotated[int | None, BeforeValidator(lambda v: None if v is None else quantities.disk_gib(v))] = None
    disk_tier: Literal["low", "medium", "high", "ultra", "best", "none"] | None = None
    network_tier: Literal["standard", "best"] | None = None
    ports: Annotated[Any, BeforeValidator(lambda v: None if v is None else quantities.ports(v))] = None
    image_id: Annotated[Any, BeforeValidator(lambda v: None if v is None else _text_or_map(v))] = None
    labels: dict[str, str] | None = None
    autostop: Annotated[dict[str, Any] | None, BeforeValidator(lambda v: None if v is None else _autostop(v))] = None
    priority: Annotated[int | None, Field(ge=-1000, le=1000)] = None
    priority_class: str | None = None
    job_recovery: Annotated[
        dict[str, Any] | None, BeforeValidator(lambda v: None if v is None else _job_recovery(v))
    ] = None
    volumes: list[dict[str, Any]] | None = None

    @model_validator(mode="before")
    @classmethod
    def _take_aliases(cls, data: Any) -> Any:
        if isinstance(data, dict) and "gpus" in data:
            if "accelerators" in data:
                raise ValueError("`gpus` is another name of `accelerators`: give one of them")
            data = {("accelerators" if key == "gpus" else key): value for key, value in data.items()}
        return data

    @model_validator(mode="after")
    def _check_infra(self) -> "ResourceFields":
        if self.infra is not None and any((self.cloud, self.region, self.zone)):
            raise ValueError("`infra` already says cloud, region and zone: give it alone")
        return self


class Alternative(ResourceFields):
    """One item of `any_of` or `ordered`; what it does not say is taken from the block around it."""


class Resources(ResourceFields):
    """What each node of a task must have."""

    any_of: list[Alternative | str] | None = None
    ordered: list[Alternative | str] | None = None

    @model_validator(mode="after")
    def _check_alternatives(self) -> "Resources":
        if self.any_of is not None and self.ordered is not None:
            raise ValueError("`any_of` and `ordered` exclude each other: give one of them")
        several = self.accelerators is not None and len(self.accelerators.choices) > 1
        if several and self.ordered is not None:
            raise ValueError(
                "several accelerators and `ordered` exclude each other: put the accelerators into `ordered`"
            )
        if several and self.any_of is not None and self.accelerators is not None and self.accelerators.ordered:
            raise ValueError(
                "a list of accelerators and `any_of` exclude each other: put the accelerators into `any_of`"
            )
        return self

    def alternatives(self) -> list[ResourceFields]:
        """Give the alternatives with the outer fields filled in; this block alone when it has none."""
        inner = self.any_of if self.any_of is not None else self.ordered
        if not inner:
            return [self]
        outer = {name: getattr(self, name) for name in ResourceFields.model_fields}
        return [_filled(outer, item) for item in inner if isinstance(item, Alternative)] or [self]

    def demands(self) -> list[Demand]:
        """Give what one node must offer, best alternative first."""
        return [demand for fields in self.alternatives() for demand in _demands(fields)]


def _filled(outer: dict[str, Any], inner: Alternative) -> ResourceFields:
    """Lay an alternative over the outer fields; labels are joined for this alternative alone."""
    own = {name: value for name in ResourceFields.model_fields if (value := getattr(inner, name)) is not None}
    labels = {**(outer["labels"] or {}), **(inner.labels or {})} or None
    return ResourceFields.model_construct(**{**outer, **own, "labels": labels})


def _demands(fields: ResourceFields) -> list[Demand]:
    cpus, memory = fields.cpus or Amount(0), fields.memory or Amount(0)
    choices = fields.accelerators.choices if fields.accelerators else ()
    return [
        Demand(cpus.value, cpus.at_least, memory.value, memory.at_least, fields.disk_size or 0, kinds)
        for kinds in ([{choice.name: int(choice.count)} for choice in choices] or [{}])
    ]
