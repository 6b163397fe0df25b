"""Finds the kp-init program of this installation, and builds it from its C source where it is missing or stale.

`packaging/build_hook.py` loads this very file while the wheel is built, so it imports nothing of ours at its top.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOM = Path(__file__).resolve().parent.parent
SOURCES = ROOM / "init"
BINARY = ROOM / "_bin" / "kp-init"
FLAGS = ("-std=gnu11", "-O2", "-g0", "-Wall", "-Wextra", "-Werror", "-static", "-s")
BUILD_TIMEOUT_S = 120


def find() -> Path:
    """Return the path of kp-init, building it first where its source is newer; raises BuildError."""
    if not BINARY.exists() or _is_stale():
        build(BINARY)
    return BINARY


def build(target: Path, *, flags: tuple[str, ...] = FLAGS) -> None:
    """Compile the C source next to this package to `target` with `$CC` or `cc`; raises BuildError."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise _error("no C compiler found to build kp-init: install gcc and libc6-dev, or set CC")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        # Built aside and renamed: a process that starts kp-init meanwhile sees the old program or the new one.
        fresh = Path(scratch) / target.name
        command = [compiler, *flags, "-o", str(fresh), *map(str, sorted(SOURCES.glob("*.c")))]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BUILD_TIMEOUT_S)
        if done.returncode:
            raise _error(f"kp-init does not build with {compiler}:\n{done.stderr[-4000:]}")
        fresh.replace(target)


def _is_stale() -> bool:
    """Tell whether the source was edited after the build; an installed wheel's files are never newer than it."""
    if not os.access(BINARY.parent, os.W_OK):
        return False
    built = BINARY.stat().st_mtime
    return any(file.stat().st_mtime > built for file in SOURCES.glob("*.[ch]"))


def _error(message: str) -> Exception:
    try:
        from kernpool_sandbox.kpinit.errors import BuildError
    except ImportError:  # the build hook runs before the package can be imported
        return RuntimeError(message)
    return BuildError(message)


if __name__ == "__main__":
    sys.stdout.write(f"{find()}\n")
