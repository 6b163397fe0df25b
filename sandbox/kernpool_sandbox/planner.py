"""Turns templates into plans and remembers them: the image is found once, however many sandboxes are made of it."""

from typing import final

from kernpool_mesh.messages import Template
from kernpool_sandbox.config import RuntimeConfig
from kernpool_sandbox.images import Images
from kernpool_sandbox.isolation import NodeIsolation
from kernpool_sandbox.template import PlannedTemplate, check, plan_template

PLANS_MAX = 1024

_CacheKey = tuple[str, tuple[int, ...], str, bool]


@final
class Planner:
    """The planned templates of one runtime. A template's user, cwd and env count for its commands, not for its plan."""

    def __init__(self, config: RuntimeConfig, isolation: NodeIsolation, images: Images) -> None:
        self._config = config
        self._isolation = isolation
        self._images = images
        self._planned: dict[_CacheKey, PlannedTemplate] = {}
        self._by_key: dict[str, tuple[PlannedTemplate, Template]] = {}
        """Every plan that a pool may still ask for, with one template that led to it."""

    def known(self, template: Template) -> PlannedTemplate | None:
        """Return the plan of a template that was planned before: a look into a table."""
        return self._planned.get(_cache_key(template))

    async def plan(self, template: Template) -> PlannedTemplate:
        """Return the plan of a template, preparing its image if need be. TemplateError, ImageError, IsolationError."""
        check(template, self._isolation)
        image = await self._images.resolve(template.image, allow_setuid=template.allow_setuid)
        planned = plan_template(template, self._config.with_defaults(template.limits), image, self._isolation)
        if len(self._by_key) >= PLANS_MAX:
            self._planned.clear()
            self._by_key.clear()
        self._planned[_cache_key(template)] = planned
        self._by_key[planned.key] = (planned, template)
        return planned

    def by_key(self, key: str) -> tuple[PlannedTemplate, Template] | None:
        """Return a plan by its key, with a template of it."""
        return self._by_key.get(key)

    def forget(self) -> None:
        """Plan every template anew when it is next asked for: the host's programs have changed."""
        self._planned.clear()


def _cache_key(template: Template) -> _CacheKey:
    limits = template.limits
    amounts = (limits.cpu_millis, limits.memory_mib, limits.disk_mib, limits.pids)
    return (template.image, amounts, template.network, template.allow_setuid)
