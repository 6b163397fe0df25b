"""Finds the kp-init program of this installation, and builds it from its C source where it is missing or stale."""

import fcntl
import hashlib
import os
import subprocess
from pathlib import Path
from typing import Final

from kernpool_sandbox.kpinit.errors import BuildError

_PACKAGE: Final = Path(__file__).parent.parent
SOURCE_DIR: Final = _PACKAGE / "init"
INSTALLED: Final = _PACKAGE / "_bin" / "kp-init"
CFLAGS: Final = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror")
LDFLAGS: Final = ("-static", "-s")
_BUILD_DEADLINE_S: Final = 300


def find() -> Path:
    """Return the path of kp-init; in a source tree it is built where it is missing or stale. Raises BuildError."""
    stamp = INSTALLED.with_name("kp-init.sources")
    if INSTALLED.exists() and not stamp.exists():  # an installed wheel carries the program alone
        return INSTALLED
    digest = _sources_digest()
    if INSTALLED.exists() and stamp.exists() and stamp.read_text() == digest:
        return INSTALLED
    INSTALLED.parent.mkdir(exist_ok=True)
    with (INSTALLED.parent / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test runs may want it at once
        if not (INSTALLED.exists() and stamp.exists() and stamp.read_text() == digest):
            build(INSTALLED)
            stamp.write_text(digest)
    return INSTALLED


def build(target: Path, *, cflags: tuple[str, ...] = CFLAGS, ldflags: tuple[str, ...] = LDFLAGS) -> None:
    """Compile the C source next to this package to `target` with `$CC` (else `cc`); raises BuildError."""
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    compiler = os.environ.get("CC", "cc")
    command = [compiler, *cflags, *ldflags, "-o", str(scratch), *map(str, _sources())]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_DEADLINE_S, check=False)
    except FileNotFoundError as error:
        raise BuildError(f"no C compiler: install gcc and libc6-dev (looked for {compiler!r})") from error
    if done.returncode != 0:
        scratch.unlink(missing_ok=True)
        raise BuildError(f"{' '.join(command[:8])} ... failed:\n{done.stderr}")
    scratch.replace(target)


def _sources() -> list[Path]:
    return sorted(SOURCE_DIR.glob("*.c"))


def _sources_digest() -> str:
    digest = hashlib.sha256(" ".join((os.uname().machine, *CFLAGS, *LDFLAGS)).encode())
    for path in sorted(SOURCE_DIR.glob("*.[ch]")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    print(find())
