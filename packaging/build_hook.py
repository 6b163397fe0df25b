"""Hatch build hook: compiles kp-init into the wheel, which is therefore of one platform."""

import importlib.util
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def _load_binary_module(root: Path) -> ModuleType:
    """Load kpinit/binary.py from the tree that is being built, which is not installed yet."""
    sys.path.insert(0, str(root / "sandbox"))
    try:
        spec = importlib.util.spec_from_file_location(
            "kp_build_binary", root / "sandbox" / "kernpool_sandbox" / "kpinit" / "binary.py"
        )
        if spec is None or spec.loader is None:
            raise RuntimeError("kernpool_sandbox/kpinit/binary.py is missing from the source tree")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.pop(0)


class CustomBuildHook(BuildHookInterface[Any]):
    """Builds `_bin/kp-init` before the wheel's files are collected."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the program and mark the wheel as holding one (any Python, this platform)."""
        del version
        if self.target_name != "wheel":
            return
        _load_binary_module(Path(self.root)).find()
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
