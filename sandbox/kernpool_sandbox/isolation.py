"""What this node can isolate and what not, each problem as one sentence with what to do about it.

The kernel is asked by trying (probe.py, in a process of its own); why something failed is read from the few files that
know. `judge` is pure: it makes the node's answer of the two.
"""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, final

from kernpool_sandbox import cgroup_detect
from kernpool_sandbox.cgroup_detect import CgroupFacts
from kernpool_sandbox.cgroups import CgroupKind
from kernpool_sandbox.errors import IsolationError
from kernpool_sandbox.subprograms import run_module
from kernpool_sandbox.sysfiles import read_text

PROBE_TIMEOUT_S = 20.0


@final
@dataclass(frozen=True, slots=True)
class NodeIsolation:
    """What this node has; templates are made after it and `fits()` reads it."""

    isolation: tuple[str, ...]
    """Isolations that work: ("namespace",) or nothing."""
    problems: tuple[str, ...]
    """One sentence for each thing that does not work, and what to do."""
    cgroup: CgroupKind
    limits: Literal["cgroup", "rlimit"]
    uids: Literal["range", "single"]
    """range: each sandbox has 65,536 ids of its own. single: its root is the node's own user."""
    idmap: bool
    """Host files and image layers can be mapped into a sandbox's range."""
    overlay: bool
    """A private overlay can be mounted in a user namespace."""
    proc: bool
    """A fresh /proc can be mounted."""
    netns: bool

    @property
    def works(self) -> bool:
        """Whether sandboxes can be made here at all."""
        return bool(self.isolation)

    def require(self) -> None:
        """Raise IsolationError with every reason when no sandbox can be made here."""
        if not self.works:
            raise IsolationError("this node cannot isolate sandboxes: " + " ".join(self.problems))


@final
@dataclass(frozen=True, slots=True)
class HostFacts:
    """What files of the host say about why a try may have failed."""

    euid: int
    privileged: bool
    """CAP_SYS_ADMIN and CAP_SETUID are effective in the first user namespace that we can see."""
    kernel: tuple[int, int]
    apparmor_restricts: bool
    """Ubuntu 23.10 and later: unprivileged user namespaces get no capabilities without an AppArmor profile."""
    userns_clone: int
    """Debian's old switch; 1 where it does not exist."""
    user_namespaces_max: int
    proc_overmounts: tuple[str, ...]
    """Mounts below /proc, which make the kernel refuse a fresh one to others than root."""
    in_container: bool


def host_facts(root: Path = Path("/")) -> HostFacts:
    """Read the facts."""
    kernel = (read_text(root / "proc/sys/kernel/osrelease") or "0.0").split(".")
    return HostFacts(
        euid=os.geteuid(),
        privileged=_privileged(read_text(root / "proc/self/status") or ""),
        kernel=(int(kernel[0]), int("".join(filter(str.isdigit, kernel[1].split("-")[0])) or "0")),
        apparmor_restricts=_number(root / "proc/sys/kernel/apparmor_restrict_unprivileged_userns", 0) > 0,
        userns_clone=_number(root / "proc/sys/kernel/unprivileged_userns_clone", 1),
        user_namespaces_max=_number(root / "proc/sys/user/max_user_namespaces", 1),
        proc_overmounts=_below_proc(read_text(root / "proc/self/mountinfo") or ""),
        in_container=any((root / name).exists() for name in (".dockerenv", "run/.containerenv")),
    )


async def ask_kernel(directory: Path) -> dict[str, str]:
    """Run probe.py below `directory`, on the filesystem where images will lie; IsolationError when it cannot run."""
    try:
        status, out, err = await run_module("kernpool_sandbox.probe", str(directory), timeout_s=PROBE_TIMEOUT_S)
    except TimeoutError:
        raise IsolationError(f"the isolation probe did not end within {PROBE_TIMEOUT_S:.0f} s") from None
    if status:
        raise IsolationError(f"the isolation probe failed: {err[-500:]}")
    answer: dict[str, str] = json.loads(out)
    return answer


def judge(answers: Mapping[str, str], facts: HostFacts, cgroups: CgroupFacts) -> NodeIsolation:
    """Make the node's answer of what the kernel said and what the host's files say."""
    works = {name: not reason for name, reason in answers.items()}
    needed = [name for name in ("userns", "mounts", "proc", "netns") if not works.get(name)]
    problems = [_sentence(needed[0], answers, facts)] if needed else []
    if not needed:
        problems.extend(_lesser_problems(answers, facts, cgroups))
    return NodeIsolation(
        isolation=() if needed else ("namespace",),
        problems=tuple(problems),
        cgroup=cgroups.kind,
        limits="rlimit" if cgroups.kind == "none" else "cgroup",
        uids="range" if facts.privileged else "single",
        idmap=facts.privileged and works.get("idmap", False),
        overlay=works.get("overlay", False),
        proc=works.get("proc", False),
        netns=works.get("netns", False),
    )


def _sentence(name: str, answers: Mapping[str, str], facts: HostFacts) -> str:
    """Say why the first missing thing is missing; what follows from it is not told again."""
    reason = answers.get(name, "not tried")
    if name in ("userns", "mounts") and facts.apparmor_restricts and not facts.privileged:
        return (
            "AppArmor restricts unprivileged user namespaces (Ubuntu 23.10 and later): install as root, or set"
            " `sysctl kernel.apparmor_restrict_unprivileged_userns=0`."
        )
    if name == "userns" and not facts.userns_clone and not facts.privileged:
        return (
            "Unprivileged user namespaces are off: set `sysctl kernel.unprivileged_userns_clone=1` or install as root."
        )
    if name == "userns" and facts.user_namespaces_max == 0:
        return "User namespaces are off: set `sysctl user.max_user_namespaces=15000`."
    if name == "proc" and facts.proc_overmounts:
        masked = ", ".join(facts.proc_overmounts[:3])
        return (
            f"A fresh /proc is refused because parts of this one are masked ({masked}, ...), as in a default container:"
            " start it with `--security-opt systempaths=unconfined` (docker, podman) or `procMount: Unmasked`"
            " (Kubernetes)."
        )
    container = " (in a container: allow unshare and mount in its seccomp profile)" if facts.in_container else ""
    what = {
        "userns": "User namespaces",
        "mounts": "Mounts in a user namespace",
        "proc": "A fresh /proc",
        "netns": "Network namespaces",
    }[name]
    return f"{what} cannot be made here: {reason}{container}."


def _lesser_problems(answers: Mapping[str, str], facts: HostFacts, cgroups: CgroupFacts) -> list[str]:
    problems = []
    if cgroups.kind == "none":
        told = "; ".join(cgroups.problems) or "no cgroup can be made"
        problems.append(f"Limits are those of single processes (rlimits), and `oom` cannot be told: {told}.")
    if answers.get("overlay"):
        old = " (it needs kernel 5.11)" if facts.kernel < (5, 11) else ""
        problems.append(f"No overlay in a user namespace{old}, so the host image is read-only: {answers['overlay']}.")
    if not facts.privileged:
        problems.append(
            "Without root a sandbox's root is this very user outside, /usr inside is read-only, and files of other"
            " owners cannot be made: install as root for ranges of ids."
        )
    elif facts.euid != 0 and not answers.get("idmap"):
        problems.append(
            f"The agent itself has no root, so all files of an image by path belong to uid {facts.euid} inside: its"
            " root may use them, programs of other users may not."
        )
    elif answers.get("idmap"):
        old = " (it needs kernel 5.19)" if facts.kernel < (5, 19) else ""
        problems.append(f"No idmapped mounts{old}, so /usr inside is read-only: {answers['idmap']}.")
    return problems


_CAP_SETUID = 7
_CAP_SYS_ADMIN = 21


def _privileged(status: str) -> bool:
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            effective = int(line.split()[1], 16)
            return bool(effective >> _CAP_SYS_ADMIN & 1 and effective >> _CAP_SETUID & 1)
    return False


def _below_proc(mountinfo: str) -> tuple[str, ...]:
    points = (fields[4] for line in mountinfo.splitlines() if len(fields := line.split()) > 4)
    return tuple(point for point in points if point.startswith("/proc/") and point != "/proc/sys/fs/binfmt_misc")


def _number(path: Path, default: int) -> int:
    text = (read_text(path) or "").strip()
    return int(text) if text.lstrip("-").isdigit() else default


async def look(directory: Path) -> NodeIsolation:
    """Ask kernel and host what works here; leaves nothing behind. Raises IsolationError."""
    return judge(await ask_kernel(directory), host_facts(), cgroup_detect.detect())


def main() -> int:
    """Print the answer as JSON, for `kernpool check`."""
    with tempfile.TemporaryDirectory(prefix="kernpool-check-") as directory:
        print(json.dumps(asdict(asyncio.run(look(Path(directory))))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
