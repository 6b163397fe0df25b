"""Whether this machine has NVML at all, found out without loading it (loading belongs to the worker)."""

import os
from collections.abc import Mapping
from pathlib import Path

LIBRARY = "libnvidia-ml.so.1"
_DIRECTORIES = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
)
_LD_CACHE = Path("/etc/ld.so.cache")


def present(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the dynamic loader would find libnvidia-ml.so.1."""
    directories = [*filter(None, environ.get("LD_LIBRARY_PATH", "").split(":")), *_DIRECTORIES]
    if any(Path(directory, LIBRARY).exists() for directory in directories):
        return True
    try:
        return LIBRARY.encode() in _LD_CACHE.read_bytes()
    except OSError:
        return False
