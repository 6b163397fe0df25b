"""Turns rules.txt into seccomp_table.h: one BPF program each for x86-64 and arm64.

Run it after a change of rules.txt: `python packaging/seccomp/generate.py`. Numbers come from the kernel headers of
Debian's linux-libc-dev; system calls newer than those are named below (from 424 on they are the same everywhere:
https://docs.kernel.org/process/adding-syscalls.html).
"""

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
TABLE = HERE.parents[1] / "sandbox" / "kernpool_sandbox" / "init" / "seccomp_table.h"
HEADERS = {
    "x86_64": (Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), 0xC000003E),
    "aarch64": (Path("/usr/include/asm-generic/unistd.h"), 0xC00000B7),
}
NEWER = {
    "cachestat": 451, "fchmodat2": 452, "map_shadow_stack": 453, "futex_wake": 454, "futex_wait": 455,
    "futex_requeue": 456, "statmount": 457, "listmount": 458, "mseal": 462, "setxattrat": 463, "getxattrat": 464,
    "listxattrat": 465, "removexattrat": 466, "open_tree_attr": 467,
}  # fmt: skip
ALLOW, KILL = "SECCOMP_RET_ALLOW", "SECCOMP_RET_KILL_PROCESS"
EPERM, ENOSYS = "SECCOMP_RET_ERRNO | 1", "SECCOMP_RET_ERRNO | 38"
ACTIONS = {"allow": ALLOW, "eperm": EPERM}


@dataclass
class Rules:
    """What rules.txt says, by name of system call."""

    actions: dict[str, str] = field(default_factory=dict)
    checks: dict[str, tuple[int, str, list[int]]] = field(default_factory=dict)
    """name -> (argument, `flags` or `only`, values)"""


def read_rules(text: str) -> Rules:
    """Read the list; a name that stands twice is a mistake."""
    rules = Rules()
    for line in text.splitlines():
        head, _, rest = line.partition(":")
        if not rest or head.startswith("#"):
            continue
        words = rest.split()
        if head == "check":
            new = {words[0]: (int(words[1]), words[2], [int(value, 0) for value in words[3:]])}
            _add(rules, rules.checks, new)
        else:
            _add(rules, rules.actions, dict.fromkeys(words, ACTIONS[head]))
    return rules


def _add(rules: Rules, target: dict, new: dict) -> None:  # type: ignore[type-arg]
    twice = [name for name in new if name in rules.actions or name in rules.checks]
    if twice:
        sys.exit(f"rules.txt: {twice[0]} stands twice")
    target.update(new)


def numbers(header: Path) -> dict[str, int]:
    """Read the numbers of one architecture from its header."""
    found: dict[str, int] = {}
    for name, number in re.findall(
        r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", header.read_text(encoding="utf-8"), re.MULTILINE
    ):
        found.setdefault(name, int(number))
    # arm64 says fcntl & co. by their 3264 names: the numbers are those, the names are the 64-bit ones.
    if "fstatat" in found:
        found["newfstatat"] = found.pop("fstatat")
    return {**NEWER, **found}


def program(rules: Rules, known: dict[str, int], arch: int) -> list[str]:
    """Write one BPF program: refuse foreign architectures, then walk the numbers upwards, segment by segment."""
    actions = {known[name]: action for name, action in rules.actions.items() if name in known}
    checks = {known[name]: check for name, check in rules.checks.items() if name in known}
    lines = [
        "BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),",
        f"BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x{arch:08X}, 1, 0),",
        f"BPF_STMT(BPF_RET | BPF_K, {KILL}),",
        "BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),",
    ]
    for start, end, action in segments(actions, set(checks)):
        block = _check(*checks[start]) if action == "check" else [f"BPF_STMT(BPF_RET | BPF_K, {action}),"]
        lines += [f"BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, {end}, {len(block)}, 0),", *block]
    # Numbers beyond the list, and the x32 calls (bit 30), are unknown here.
    return [*lines, f"BPF_STMT(BPF_RET | BPF_K, {ENOSYS}),"]


def segments(actions: dict[int, str], checks: set[int]) -> list[tuple[int, int, str]]:
    """Cut the numbers into runs with one action: (first, one past the last, action)."""
    result: list[tuple[int, int, str]] = []
    for number in range(max([*actions, *checks]) + 1):
        action = "check" if number in checks else actions.get(number, ENOSYS)
        if result and result[-1][2] == action != "check":
            result[-1] = (result[-1][0], number + 1, action)
        else:
            result.append((number, number + 1, action))
    return result


def _check(argument: int, kind: str, values: list[int]) -> list[str]:
    # Only the low 32 bits: the kernel takes these arguments as int.
    load = f"BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[{argument}])),"
    allow, refuse = f"BPF_STMT(BPF_RET | BPF_K, {ALLOW}),", f"BPF_STMT(BPF_RET | BPF_K, {EPERM}),"
    if kind == "flags":
        (bits,) = values
        return [load, f"BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 0x{bits:08X}, 1, 0),", allow, refuse]
    tests = [
        f"BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x{value:08X}, {len(values) - index}, 0),"
        for index, value in enumerate(values)
    ]
    return [load, *tests, refuse, allow]


def table(rules: Rules) -> str:
    """Write the whole header."""
    text = "/* Made by packaging/seccomp/generate.py from rules.txt: change those. */\n"
    for index, (name, (header, arch)) in enumerate(HEADERS.items()):
        lines = program(rules, numbers(header), arch)
        keyword = "#elif" if index else "#if"
        body = "\n".join(f"\t{line}" for line in lines)
        text += f"{keyword} defined(__{name}__)\nstatic const struct sock_filter seccomp_table[] = {{\n{body}\n}};\n"
    return text + '#else\n#error "kp-init has a seccomp list for x86-64 and arm64 only"\n#endif\n'


if __name__ == "__main__":
    TABLE.write_text(table(read_rules((HERE / "rules.txt").read_text(encoding="utf-8"))), encoding="utf-8")
