"""Generate sandbox/kernpool_sandbox/init/seccomp_table.h from seccomp.list: one BPF program per architecture.

Run it on a machine with Linux headers (linux-libc-dev) after changing the list, and commit the result:

    python3 packaging/gen_seccomp.py
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

INIT_DIR: Final = Path(__file__).parent.parent / "sandbox" / "kernpool_sandbox" / "init"

HEADERS: Final = {
    "x86_64": (Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), 0xC000003E),
    "aarch64": (Path("/usr/include/asm-generic/unistd.h"), 0xC00000B7),
}
NEWER_CALLS: Final = {
    "cachestat": 451, "fchmodat2": 452, "map_shadow_stack": 453, "futex_wake": 454, "futex_wait": 455,
    "futex_requeue": 456, "mseal": 462,
}  # fmt: skip
"""Calls that the headers of a stable distribution may not have yet; all architectures number them alike."""
GENERIC_NAMES: Final = {"fstatat": "newfstatat", "sendfile64": "sendfile", "fadvise64_64": "fadvise64", "mmap2": "mmap"}
"""asm-generic/unistd.h numbers some calls under two names, by word size."""

ALLOW: Final = 0x7FFF0000
ERRNO: Final = 0x00050000
EPERM: Final = ERRNO | 1
ENOSYS: Final = ERRNO | 38
EAFNOSUPPORT: Final = ERRNO | 97

LD_ABS, JMP_JA, JEQ, JGE, JSET, RET = 0x20, 0x05, 0x15, 0x35, 0x45, 0x06
NR_OFFSET, ARCH_OFFSET, ARG0_OFFSET, ARG1_OFFSET = 0, 4, 16, 24

NEW_NAMESPACES: Final = 0x7E020000
NEW_TIME: Final = 0x80
"""CLONE_NEWTIME; for clone() itself these bits are the exit signal."""

Instruction = tuple[int, int, int, int]
Verdict = int | str


def read_numbers(arch: str) -> dict[str, int]:
    """Return call name -> number as the architecture's header has them."""
    text = HEADERS[arch][0].read_text()
    found = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)", text, re.MULTILINE)
    numbers = {name: int(number) for name, number in found if name not in {"syscalls", "arch_specific_syscall"}}
    if arch == "aarch64":
        for generic, name in GENERIC_NAMES.items():
            if generic in numbers:
                numbers[name] = numbers[generic]
    return {**NEWER_CALLS, **numbers}


def read_list(text: str) -> dict[str, Verdict]:
    """Return call name -> verdict: a filter's return value, or the name of a check."""
    verdicts: dict[str, Verdict] = {}
    words = {"allow": ALLOW, "eperm": EPERM, "enosys": ENOSYS}
    for line in text.splitlines():
        kind, *names = line.split("#", maxsplit=1)[0].split() or [""]
        for name in names:
            if name in verdicts:
                raise SystemExit(f"seccomp.list names {name} twice")
            verdicts[name] = name if kind == "check" else words[kind]
    return verdicts


def returns(value: int) -> Instruction:
    """Build an instruction that ends the filter."""
    return (RET, 0, 0, value)


def one_of(offset: int, values: list[int], yes: int, no: int) -> list[Instruction]:
    """Compare the low half of an argument with each value."""
    code: list[Instruction] = [(LD_ABS, 0, 0, offset)]
    code += [(JEQ, len(values) - i, 0, value) for i, value in enumerate(values)]
    return [*code, returns(no), returns(yes)]


def any_bit(offset: int, mask: int, yes: int, no: int) -> list[Instruction]:
    """Test the low half of an argument for any bit of the mask."""
    return [(LD_ABS, 0, 0, offset), (JSET, 0, 1, mask), returns(yes), returns(no)]


CHECKS: Final[Mapping[str, list[Instruction]]] = {
    "clone": any_bit(ARG0_OFFSET, NEW_NAMESPACES, EPERM, ALLOW),
    "unshare": any_bit(ARG0_OFFSET, NEW_NAMESPACES | NEW_TIME, EPERM, ALLOW),
    # TIOCSTI and TIOCLINUX type into a terminal that somebody else reads.
    "ioctl": one_of(ARG1_OFFSET, [0x5412, 0x541C], EPERM, ALLOW),
    # PER_LINUX, PER_LINUX32, UNAME26, both, and the query.
    "personality": one_of(ARG0_OFFSET, [0, 8, 0x20000, 0x20008, 0xFFFFFFFF], ALLOW, EPERM),
    # unix, inet, inet6, netlink.
    "socket": one_of(ARG0_OFFSET, [1, 2, 10, 16], ALLOW, EAFNOSUPPORT),
}


def runs(numbers: Mapping[str, int], verdicts: Mapping[str, Verdict]) -> list[tuple[int, Verdict]]:
    """Return (first number, verdict) of each run of calls with one verdict, in order."""
    by_number = {numbers[name]: verdict for name, verdict in verdicts.items() if name in numbers}
    result: list[tuple[int, Verdict]] = []
    for number in range(max(by_number) + 2):
        verdict = by_number.get(number, ENOSYS)
        if not result or result[-1][1] != verdict or isinstance(verdict, str):
            result.append((number, verdict))
    return result


def search(ordered: list[tuple[int, Verdict]]) -> list[Instruction]:
    """Build a binary search over the runs; the number is in the accumulator."""
    if len(ordered) == 1:
        verdict = ordered[0][1]
        return CHECKS[verdict] if isinstance(verdict, str) else [returns(verdict)]
    middle = len(ordered) // 2
    low, high = search(ordered[:middle]), search(ordered[middle:])
    if len(low) > 255:
        return [(JGE, 0, 1, ordered[middle][0]), (JMP_JA, 0, 0, len(low)), *low, *high]
    return [(JGE, len(low), 0, ordered[middle][0]), *low, *high]


def program(arch: str, verdicts: Mapping[str, Verdict]) -> list[Instruction]:
    """Build the whole filter; calls of another architecture (32-bit ones) answer ENOSYS."""
    head: list[Instruction] = [
        (LD_ABS, 0, 0, ARCH_OFFSET),
        (JEQ, 1, 0, HEADERS[arch][1]),
        returns(ENOSYS),
        (LD_ABS, 0, 0, NR_OFFSET),
    ]
    return head + search(runs(read_numbers(arch), verdicts))


def render(programs: Mapping[str, list[Instruction]]) -> str:
    """Render the header."""
    lines = [
        "/* Generated by packaging/gen_seccomp.py from seccomp.list. Change that, not this. */",
        "#include <linux/filter.h>",
    ]
    for arch, code in programs.items():
        lines += [f"#if defined(__{arch}__)", ""]
        lines += [f"static struct sock_filter seccomp_table[{len(code)}] = {{"]
        lines += [f"\t{{0x{op:02x}, {jt}, {jf}, 0x{k:08x}}}," for op, jt, jf, k in code]
        lines += ["};", "#endif"]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the table, or with --check only say whether it is up to date."""
    verdicts = read_list((INIT_DIR / "seccomp.list").read_text())
    text = render({arch: program(arch, verdicts) for arch in HEADERS})
    target = INIT_DIR / "seccomp_table.h"
    if "--check" in sys.argv[1:]:
        return 0 if target.exists() and target.read_text() == text else 1
    target.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
