"""The seccomp tables: up to date, with the verdicts of the list, the same as libseccomp would build."""

import ctypes
import ctypes.util
import errno
import importlib.util
import os
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kernpool_sandbox.kpinit.binary import SOURCE_DIR

ROOT = Path(__file__).parents[3]
CLONE_NEWUSER = 0x10000000


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen_seccomp", ROOT / "packaging" / "gen_seccomp.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = load_generator()
HEADERS_HERE = all(path.exists() for path, _ in GENERATOR.HEADERS.values())
needs_headers = pytest.mark.skipif(not HEADERS_HERE, reason="needs the kernel headers of both architectures")


def table(arch: str) -> list[tuple[int, int, int, int]]:
    """Read one architecture's program back from the committed header."""
    section = (SOURCE_DIR / "seccomp_table.h").read_text().split(f"defined(__{arch}__)")[1].split("#endif")[0]
    rows = [line.strip("\t{},").split(", ") for line in section.splitlines() if line.startswith("\t{")]
    return [(int(op, 16), int(jt), int(jf), int(k, 16)) for op, jt, jf, k in rows]


def run(program: list[tuple[int, int, int, int]], arch: int, number: int, args: tuple[int, ...] = ()) -> int:
    """Interpret a filter on one call, as the kernel would."""
    data = struct.pack("<IIQ6Q", number, arch, 0, *args, *[0] * (6 - len(args)))
    accumulator, at = 0, 0
    while True:
        op, jt, jf, k = program[at]
        at += 1
        match op:
            case 0x20:
                accumulator = struct.unpack_from("<I", data, k)[0]
            case 0x05:
                at += k
            case 0x15:
                at += jt if accumulator == k else jf
            case 0x35:
                at += jt if accumulator >= k else jf
            case 0x25:
                at += jt if accumulator > k else jf
            case 0x45:
                at += jt if accumulator & k else jf
            case 0x54:
                accumulator &= k
            case 0x06:
                return k
            case _:
                raise AssertionError(f"an instruction {op:#x} that the interpreter does not know")


@needs_headers
def test_the_committed_table_is_what_the_list_says() -> None:
    """Somebody changed the list and forgot the generator."""
    done = subprocess.run([sys.executable, str(ROOT / "packaging" / "gen_seccomp.py"), "--check"], check=False)
    assert done.returncode in {0, 1}
    # Newer headers number more calls; then the committed table must still agree on all calls that it knows.
    for arch in GENERATOR.HEADERS:
        wanted = GENERATOR.read_list((SOURCE_DIR / "seccomp.list").read_text())
        number_of = GENERATOR.read_numbers(arch)
        program, audit = table(arch), GENERATOR.HEADERS[arch][1]
        for name, verdict in wanted.items():
            if name in number_of and not isinstance(verdict, str):
                assert run(program, audit, number_of[name]) == verdict, (arch, name)


@needs_headers
@pytest.mark.parametrize("arch", GENERATOR.HEADERS)
def test_what_is_dangerous_is_refused_and_what_is_unknown_is_missing(arch: str) -> None:
    """The verdicts that matter most, spelled out."""
    program, audit, number_of = table(arch), GENERATOR.HEADERS[arch][1], GENERATOR.read_numbers(arch)

    def verdict(name: str, *args: int) -> int:
        return run(program, audit, number_of[name], args)

    for name in ("mount", "setns", "bpf", "keyctl", "io_uring_setup", "userfaultfd", "kexec_load", "open_tree"):
        assert verdict(name) == GENERATOR.EPERM, name
    assert verdict("clone3") == GENERATOR.ENOSYS
    assert verdict("clone", CLONE_NEWUSER) == GENERATOR.EPERM
    assert verdict("clone", 0x3D0F00) == GENERATOR.ALLOW  # a thread of glibc's
    assert verdict("clone", 17) == GENERATOR.ALLOW  # a fork; 17 is its exit signal
    assert verdict("unshare", 0x80) == GENERATOR.EPERM
    assert verdict("unshare", 0x400) == GENERATOR.ALLOW
    assert verdict("ioctl", 0, 0x5412) == GENERATOR.EPERM
    assert verdict("ioctl", 0, 0x5401) == GENERATOR.ALLOW
    assert verdict("socket", 38) == GENERATOR.EAFNOSUPPORT
    assert verdict("socket", 1) == GENERATOR.ALLOW
    assert verdict("personality", 0xFFFFFFFF) == GENERATOR.ALLOW
    assert verdict("personality", 0x40000) == GENERATOR.EPERM
    for number in (1000, 0x40000000, 0x40000001, 0xFFFFFFFF):
        assert run(program, audit, number) == GENERATOR.ENOSYS
    assert run(program, 0x40000003, 11) == GENERATOR.ENOSYS  # i386's execve


def libseccomp_program(arch: str, tmp_path: Path) -> list[tuple[int, int, int, int]]:
    """Build a filter from the same list with libseccomp (the checks by argument left out)."""
    name = ctypes.util.find_library("seccomp")
    if name is None:
        pytest.skip("libseccomp is not installed here")
    lib = ctypes.CDLL(name)
    lib.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(lib.seccomp_init(ctypes.c_uint32(GENERATOR.ENOSYS)))
    token = GENERATOR.HEADERS[arch][1]
    lib.seccomp_arch_add(context, ctypes.c_uint32(token))
    native = lib.seccomp_arch_native()
    if ctypes.c_uint32(native).value != token:
        lib.seccomp_arch_remove(context, ctypes.c_uint32(native))
    for call, verdict in GENERATOR.read_list((SOURCE_DIR / "seccomp.list").read_text()).items():
        there = lib.seccomp_syscall_resolve_name_arch(ctypes.c_uint32(token), call.encode())
        if isinstance(verdict, str) or verdict == GENERATOR.ENOSYS or there < 0:
            continue
        number = lib.seccomp_syscall_resolve_name(call.encode())  # rules name calls by this machine's numbers
        added = lib.seccomp_rule_add_array(context, ctypes.c_uint32(verdict), number, 0, None)
        assert added == 0, (call, os.strerror(-added))
    path = tmp_path / "filter"
    with path.open("wb") as file:
        assert lib.seccomp_export_bpf(context, file.fileno()) == 0
    lib.seccomp_release(context)
    return [struct.unpack("<HBBI", path.read_bytes()[at : at + 8]) for at in range(0, path.stat().st_size, 8)]


@needs_headers
@pytest.mark.parametrize("arch", GENERATOR.HEADERS)
def test_libseccomp_builds_the_same_verdicts(arch: str, tmp_path: Path) -> None:
    """Two independent builders of the filter agree on every call number that libseccomp knows."""
    ours, theirs, audit = table(arch), libseccomp_program(arch, tmp_path), GENERATOR.HEADERS[arch][1]
    checked = {GENERATOR.read_numbers(arch)[name] for name in GENERATOR.CHECKS}
    newer = set(GENERATOR.NEWER_CALLS.values())
    for number in range(1024):
        if number not in checked | newer:
            assert run(ours, audit, number) == run(theirs, audit, number), number


async def test_the_filter_works_inside(node: Any) -> None:
    """The kernel gives the verdicts that the table promises."""
    box = await node.box()
    script = """
import ctypes, errno, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *args):
    result = libc.syscall(number, *args)
    return errno.errorcode[ctypes.get_errno()] if result == -1 else "ok"
print(call(435, 0, 0), call(272 if os.uname().machine == "x86_64" else 97, 0x10000000), call(425, 1, 0), call(9999))
try:
    socket.socket(38, socket.SOCK_SEQPACKET)
except OSError as error:
    print(errno.errorcode[error.errno])
"""
    result = await box.run("/usr/bin/python3", "-c", script)
    if result.code == 127 or b"not found" in result.stderr:
        pytest.skip("this machine's /usr has no python3")
    assert result.stdout.split() == [b"ENOSYS", b"EPERM", b"EPERM", b"ENOSYS", b"EAFNOSUPPORT"]
    assert errno.errorcode[errno.EPERM] == "EPERM"
