"""Builds kp-init while hatchling makes the wheel, and names the platform in the wheel's tag."""

import importlib.util
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """The hook that pyproject.toml names."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile kp-init into the package; the static program runs on every Linux of this architecture."""
        source = Path(self.root) / "sandbox" / "kernpool_sandbox" / "kpinit" / "binary.py"
        spec = importlib.util.spec_from_file_location("kernpool_build_binary", source)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.find()
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
