"""The slow and risky part of images (scanning the host, unpacking a stranger's tar) in a process of its own.

`python -m kernpool_sandbox.imagework JOB-AS-JSON` prints the result as JSON; on failure it prints the reason on stderr
and exits with 1. So neither a decompressor's memory nor a long scan ever troubles the agent's event loop.
"""

import json
import os
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kernpool_sandbox import hostimage, rootfs
from kernpool_sandbox.errors import SandboxError


def do(job: dict[str, Any]) -> dict[str, Any]:
    """Do one job and return its result. ImageError, OSError."""
    match job["kind"]:
        case "host":
            return asdict(
                hostimage.prepare(
                    Path(job["images"]), hide=job["hide"], forbidden=job["forbidden"], now_unix_s=time.time()
                )
            )
        case "tar":
            return _tar(job)
        case kind:
            raise ValueError(f"unknown job {kind!r}")


def _tar(job: dict[str, Any]) -> dict[str, Any]:
    archive = Path(job["archive"])
    policy = rootfs.UnpackPolicy(
        bytes_max=job["bytes_max"], allow_setuid=job["allow_setuid"], keep_owners=os.geteuid() == 0
    )
    digest = rootfs.digest(archive)[:32] + ("-setuid" if policy.allow_setuid else "")
    base = Path(job["images"]) / "tar"
    final_path = base / digest
    if not final_path.exists():
        building = base / f"new-{os.getpid()}"
        try:
            rootfs.unpack(archive, building / "root", policy)
            building.rename(final_path)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return {"digest": digest, "root": str(final_path / "root")}


def main() -> int:
    """Run one job given on the command line."""
    os.nice(5)
    os.umask(0o022)
    try:
        result = do(json.loads(sys.argv[1]))
    except (SandboxError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
