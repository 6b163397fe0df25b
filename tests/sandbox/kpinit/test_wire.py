"""The bytes of the protocol, and that C and Python number them alike."""

import re
from pathlib import Path

import pytest

from kernpool_sandbox.kpinit.binary import SOURCE_DIR
from kernpool_sandbox.kpinit.encoding import encode_exec, encode_file, encode_job, encode_mounts, encode_sandbox
from kernpool_sandbox.kpinit.errors import ProtocolError
from kernpool_sandbox.kpinit.files import parse_entries
from kernpool_sandbox.kpinit.plan import (
    Bind,
    Dev,
    Dir,
    ExecCause,
    ExecSpec,
    File,
    FileOp,
    FileSpec,
    JobCause,
    JobPlan,
    JobUser,
    Kind,
    Mask,
    Overlay,
    Proc,
    ReadOnly,
    Rlimit,
    SandboxPlan,
    Staging,
    Step,
    Symlink,
    Sysfs,
    Tmpfs,
    exit_code,
)
from kernpool_sandbox.kpinit.record import EndCause, JobState, parse_end_record, parse_job_record
from kernpool_sandbox.kpinit.wire import Frame, Op, Tag, c_string, decode, encode, put_str, put_u32, put_u64

GOLDEN = {
    "hello": (
        encode(Op.HELLO, 1, 1, 1),
        "01000000 01000000 01000000 01000000",
    ),
    "claim": (
        encode(Op.CLAIM, 2, body=put_str(Tag.TOKEN, "t") + put_u64(Tag.TTL_MS, 300_000)),
        "20000000 02000000 00000000 00000000 26000000 02000000 7400 27000000 08000000 e093040000000000",
    ),
    "exec": (
        encode(Op.EXEC, 3, 7, body=encode_exec(ExecSpec(7, ("ls", "-l"), {"A": "b"}, "/w", "bob", 1.5, stdin=True))),
        "22000000 03000000 07000000 00000000 20000000 03000000 6c7300 20000000 03000000 2d6c00"
        "25000000 08000000 0000010000000000 21000000 04000000 413d6200 22000000 03000000 2f7700"
        "23000000 04000000 626f6200 24000000 08000000 dc05000000000000 0a000000 04000000 01000000",
    ),
    "signal": (
        encode(Op.SIGNAL, 4, 7, 15, put_u32(Tag.FLAGS, 1)),
        "23000000 04000000 07000000 0f000000 0a000000 04000000 01000000",
    ),
    "spawn": (
        encode(Op.SPAWN, 5, body=encode_sandbox("s", SandboxPlan((), 1 << 20, 65536, "h", ("/c",), 30), "t")),
        "11000000 05000000 00000000 00000000 01000000 02000000 7300 10000000 02000000 7400 14000000 02000000 6800"
        "12000000 08000000 0000100000000000 13000000 08000000 0000010000000000 16000000 08000000 3075000000000000"
        "0a000000 04000000 03000000 15000000 03000000 2f6300",
    ),
    "mounts": (
        encode_mounts((Staging(1), Bind("/a", "/b", idmap=True), File("/f", 0o644, b"x"))),
        "11000000 15000000 01000000 00000000 00000000 0100000000000000 00"
        "11000000 1a000000 06000000 17000000 00000000 0000000000000000 2f6200 2f6100"
        "11000000 18000000 05000000 00000000 a4010000 0000000000000000 2f6600 78",
    ),
    "job": (
        encode(
            Op.SPAWN_JOB,
            6,
            body=encode_job("j", JobPlan("j", (Step("r", ("x",), 1),), {"A": ""}, "/", JobUser(1, 2, (3,)))),
        ),
        "12000000 06000000 00000000 00000000 01000000 02000000 6a00 22000000 02000000 2f00"
        "40000000 0c000000 e803000000000000 7200 7800 41000000 04000000 01000000 42000000 04000000 02000000"
        "43000000 04000000 03000000 44000000 08000000 0000004000000000 45000000 08000000 0000800000000000"
        "46000000 08000000 1027000000000000 24000000 08000000 0000000000000000 21000000 03000000 413d00",
    ),
    "file": (
        encode(Op.FILE, 8, FileOp.READ, body=encode_file(FileSpec(FileOp.READ, "/f", offset=3, limit=4))),
        "26000000 08000000 01000000 00000000 30000000 03000000 2f6600 32000000 08000000 0300000000000000"
        "33000000 08000000 0400000000000000 34000000 04000000 a4010000 0a000000 04000000 00000000"
        "24000000 08000000 3075000000000000",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_released_messages_keep_their_bytes(name: str) -> None:
    """A sandbox made before an upgrade speaks the old bytes: the new agent must still send them."""
    message, golden = GOLDEN[name]
    assert message.hex() == golden.replace(" ", "")


def numbers(kind: str) -> dict[str, int]:
    """Return the numbers of one C enum."""
    text = (SOURCE_DIR / "proto.h").read_text()
    match = re.search(rf"enum {kind} \{{(.*?)\}};", text, re.DOTALL)
    assert match is not None
    return {name: int(value) for name, value in re.findall(r"(\w+) = (\d+)", match[1])}


def test_c_and_python_number_alike() -> None:
    """One number out of step, and an ack becomes a shutdown."""
    ops = {name.removeprefix("OP_").removeprefix("EV_"): value for name, value in numbers("op").items()}
    assert ops == {op.name: op.value for op in Op}
    assert numbers("tag") == {f"TAG_{tag.name}": tag.value for tag in Tag}
    assert numbers("kind") == {f"KIND_{kind.name}": kind.value for kind in Kind}
    assert numbers("exec_cause") == {f"EXEC_{cause.name}": cause.value for cause in ExecCause}
    assert numbers("job_cause") == {f"JOB_{cause.name}": cause.value for cause in JobCause}
    assert numbers("file_op") == {f"FILE_{op.name}": op.value for op in FileOp}


def test_each_mount_operation_has_the_number_c_knows() -> None:
    """A Mask read as a ReadOnly would leave a path open."""
    ops = {
        "STAGING": Staging(0),
        "TMPFS": Tmpfs("/t", 0),
        "DIR": Dir("/d"),
        "SYMLINK": Symlink("/l", "x"),
        "FILE": File("/f", 0, b""),
        "BIND": Bind("/a", "/b"),
        "OVERLAY": Overlay("/o", ("/l",)),
        "PROC": Proc(),
        "DEV": Dev(),
        "SYSFS": Sysfs(),
        "MASK": Mask("/m"),
        "READ_ONLY": ReadOnly("/r"),
    }
    encoded = {f"MOUNT_{name}": int.from_bytes(encode_mounts((op,))[8:12], "little") for name, op in ops.items()}  # type: ignore[arg-type]
    assert encoded == numbers("mount_kind")


def test_strings_with_a_nul_are_refused_here() -> None:
    """`rm -rf /tmp/x\\0y` must not become `rm -rf /tmp/x`."""
    with pytest.raises(ValueError, match="NUL"):
        c_string("a\0b")
    assert c_string("\udcff") == b"\xff\0"


@pytest.mark.parametrize("body", [b"\1", b"\1\0\0\0\5\0\0\0abcd", put_str(Tag.ID, "x") + b"\0"])
def test_answers_that_are_cut_are_protocol_errors(body: bytes) -> None:
    """A broken kp-init must not make the agent read nonsense."""
    with pytest.raises(ProtocolError):
        Frame(1, 1, 0, 0, body, []).values()
    with pytest.raises(ProtocolError):
        decode(b"short", [])
    with pytest.raises(ProtocolError):
        parse_entries(b"\x10\0\0\0")


def test_wait_statuses_become_exit_codes() -> None:
    """Shells and CI systems know 128 + signal."""
    assert [exit_code(status) for status in (0, 0x0100, 0xFF00, 9, 0x8B)] == [0, 1, 255, 137, 139]


def test_records_are_read_as_they_are_written() -> None:
    """The records outlive versions: unknown lines are skipped, an empty one means that nobody saw the end."""
    assert parse_end_record("") is None
    record = parse_end_record("cause ttl\nended_unix_ms 5\nstatus 0\ndetail a b\nnew thing\n")
    assert record is not None
    assert (record.cause, record.ended_unix_ms, record.detail) == (EndCause.TTL, 5, "a b")
    job = parse_job_record(
        "state ended\nboot_id b\npid 3\nstep 1\ncause 2\nstatus 256\ndetail \nlog_bytes 7\nuser_us 9\n"
    )
    assert (job.state, job.exit_code, job.cause, job.log_bytes) == (JobState.ENDED, 1, JobCause.STOPPED, 7)
    with pytest.raises(KeyError):
        parse_job_record("nonsense")


def test_rlimits_travel_as_number_and_value() -> None:
    """RLIMIT_NOFILE is 7, and 2^64-1 is no limit."""
    body = encode_sandbox("s", SandboxPlan((), rlimits=(Rlimit(7, 2**64 - 1),)), "")
    assert bytes.fromhex("17000000 0c000000 07000000 ffffffffffffffff".replace(" ", "")) in body


def test_the_source_names_no_path_of_a_build_machine() -> None:
    """What a sandbox's owner can read in the program must not tell about the machine that built it."""
    for path in Path(SOURCE_DIR).glob("*.[ch]"):
        assert "/home/" not in path.read_text()
