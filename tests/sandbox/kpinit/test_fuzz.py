"""The parsers meet malformed bytes under the address and undefined-behaviour sanitizers."""

import subprocess
from pathlib import Path

import pytest

from kernpool_sandbox.kpinit.binary import SOURCE_DIR
from kernpool_sandbox.kpinit.encoding import encode_exec, encode_file, encode_job, encode_sandbox
from kernpool_sandbox.kpinit.plan import (
    Bind,
    ExecSpec,
    File,
    FileOp,
    FileSpec,
    JobPlan,
    JobUser,
    Overlay,
    Rlimit,
    SandboxPlan,
    Staging,
    Step,
)
from kernpool_sandbox.kpinit.wire import Op, encode

SANITIZERS = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
PARSERS = ("frame.c", "plan.c", "users.c", "launch.c", "util.c")
ROUNDS = 60_000


def corpus() -> list[bytes]:
    """Return one well-formed message of each kind that has a body."""
    ops = (Staging(1 << 20), Overlay("/", ("/a", "/b")), Bind("/usr", "/usr"), File("/f", 0o644, b"text\0more"))
    plan = SandboxPlan(ops, 1 << 20, 65536, cgroups=("/sys/fs/cgroup/x",), rlimits=(Rlimit(7, 100),))
    steps = (Step("setup", ("sh", "-c", "true")), Step("run", ("python3", "train.py"), 3.5))
    job = JobPlan("j-1", steps, {"A": "1", "B": ""}, "/work", JobUser(1, 2, (3, 4)))
    return [
        encode(Op.SPAWN, 1, body=encode_sandbox("sb-1", plan, "template")),
        encode(Op.SPAWN_JOB, 2, body=encode_job("j-1", job)),
        encode(Op.EXEC, 3, 1, body=encode_exec(ExecSpec(1, ("echo", "hi"), {"A": "b"}, "/", "bob", 1.0, stdin=True))),
        encode(Op.FILE, 4, 1, body=encode_file(FileSpec(FileOp.WRITE, "/f", "bob", "/to", 1, 2))),
        b"bob:staff\nroot:x:0:0::/root:/bin/sh\nbob:x:1000:1000::/home/bob:\nstaff:x:50:alice,bob\n",
        b"7:9\n7:x:7:7::relative:\n::::\nx:y:z\n4294967295:x:4294967295:1::/:\n",
    ]


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the harness with sanitizers; the machine must have their libraries."""
    target = tmp_path_factory.mktemp("fuzz") / "fuzz"
    sources = [str(SOURCE_DIR / "fuzz" / "fuzz.c"), *(str(SOURCE_DIR / name) for name in PARSERS)]
    command = ["cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", *SANITIZERS, "-o", str(target), *sources]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "asan" in done.stderr and "cannot find" in done.stderr:
        pytest.skip("this compiler has no sanitizer libraries")
    assert done.returncode == 0, done.stderr
    return target


def fuzz(harness: Path, tmp_path: Path, rounds: int, seed: int) -> None:
    files = []
    for number, data in enumerate(corpus()):
        path = tmp_path / f"seed{number}"
        path.write_bytes(data)
        files.append(str(path))
    command = [str(harness), str(rounds), str(seed), *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == f"{rounds} inputs\n"


def test_malformed_messages_are_refused_without_a_stray_read(harness: Path, tmp_path: Path) -> None:
    """A broken or hostile agent sends bytes: the spawner is root and must not read past them."""
    fuzz(harness, tmp_path, ROUNDS, seed=20261130)


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(1, 9))
def test_malformed_messages_of_many_seeds(harness: Path, tmp_path: Path, seed: int) -> None:
    """The same for longer and with other bytes."""
    fuzz(harness, tmp_path, 500_000, seed)
