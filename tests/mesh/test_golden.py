"""Golden bytes of every message, as released: an older or newer other side must go on understanding them."""

from typing import Any

import msgpack
import pytest

from kernpool_mesh.codec import decode, encode, message_classes
from kernpool_mesh.messages import (
    AckAttempts,
    AttemptState,
    AttemptStatus,
    AttemptUpdate,
    CertificateIssued,
    CertificateRequest,
    Command,
    CommandResult,
    CreateSandboxes,
    DataKey,
    ExtendSandbox,
    ForgetJobs,
    Fragment,
    Gpu,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Inventory,
    Limits,
    Message,
    PoolTarget,
    RemoveSandboxes,
    Reply,
    Resources,
    SandboxItem,
    SandboxItems,
    SandboxState,
    SandboxStatus,
    SandboxUpdate,
    SetPools,
    Snapshot,
    StartAttempt,
    StopAttempt,
    StreamCredit,
    StreamData,
    StreamEof,
    StreamOpen,
    StreamReset,
    Template,
    Welcome,
)
from kernpool_mesh.reasons import EndReason

RESOURCES = Resources(4000, 8192, 100000, 2)
GPU = Gpu(0, "GPU-1", "H100", 81559, healthy=False)
LIMITS = Limits(1000, 512, 1024, 64)
COMMAND = Command(["sh", "-c", "true"], {"A": "b"}, "/root", "ann", 2.5, b"in", 4096)
RESULT = CommandResult(EndReason.EXITED, 0, b"out", b"err", 1, 2, "detail", 0.5)
TEMPLATE = Template("host", LIMITS, "root", "/", {"A": "b"}, "none", allow_setuid=True)
ATTEMPT = AttemptStatus("j-1", 0, 2, AttemptState.ENDED, EndReason.OOM, 137, "detail", 4096, 1.5, 2.5)
SANDBOX = SandboxStatus(
    "sb-a", SandboxState.ENDED, EndReason.TTL, "detail", True, 1.5, 2.5, TEMPLATE, {"run": "7"}, "default", "ann"
)

# Never edit a line: a released message keeps its bytes. New messages get new lines; new fields of old ones get none.
GOLDEN: list[tuple[Message, str]] = [
    (
        Hello(1, 2, "n-abcdefghijkl", 7, "boot-1", "0.1.0", ["streams"]),
        "98010102ae6e2d6162636465666768696a6b6c07a6626f6f742d31a5302e312e3091a773747265616d73",
    ),
    (
        Inventory(
            "host-a",
            RESOURCES,
            [GPU],
            ["10.0.0.1"],
            ["https://10.0.0.1:46582"],
            {"os": "linux", "cpus": 2},
            ["namespace"],
            ["No cgroup v2."],
            {"zone": "a"},
        ),
        "9a02a6686f73742d6194cd0fa0cd2000ce000186a002919500a54750552d31a448313030ce00013e97c291a831302e302e302e3191b668747470733a2f2f31302e302e302e313a343635383282a26f73a56c696e7578a4637075730291a96e616d65737061636591ad4e6f206367726f75702076322e81a47a6f6e65a161",
    ),
    (Heartbeat(41, RESOURCES, 0.5, 1024, 3, 8), "97032994cd0fa0cd2000ce000186a002cb3fe0000000000000cd04000308"),
    (
        Snapshot([ATTEMPT], [SANDBOX], last=False),
        "9404919aa36a2d310002a5656e646564a36f6f6dcc89a664657461696ccd1000cb3ff8000000000000cb4004000000000000919ba473622d61a5656e646564a374746ca664657461696cc3cb3ff8000000000000cb400400000000000097a4686f737494cd03e8cd0200cd040040a4726f6f74a12f81a141a162a46e6f6e65c381a372756ea137a764656661756c74a3616e6ec2",
    ),
    (
        AttemptUpdate(ATTEMPT),
        "92059aa36a2d310002a5656e646564a36f6f6dcc89a664657461696ccd1000cb3ff8000000000000cb4004000000000000",
    ),
    (
        SandboxUpdate([SANDBOX]),
        "9206919ba473622d61a5656e646564a374746ca664657461696cc3cb3ff8000000000000cb400400000000000097a4686f737494cd03e8cd0200cd040040a4726f6f74a12f81a141a162a46e6f6e65c381a372756ea137a764656661756c74a3616e6e",
    ),
    (
        SandboxItems(
            9, [SandboxItem("sb-a", SANDBOX, RESULT, "", 0.75), SandboxItem("sb-b", error="no capacity")], done=True
        ),
        "9407099295a473622d619ba473622d61a5656e646564a374746ca664657461696cc3cb3ff8000000000000cb400400000000000097a4686f737494cd03e8cd0200cd040040a4726f6f74a12f81a141a162a46e6f6e65c381a372756ea137a764656661756c74a3616e6e98a665786974656400c4036f7574c4036572720102a664657461696ccb3fe0000000000000a0cb3fe800000000000095a473622d62c0c0ab6e6f206361706163697479cb0000000000000000c3",
    ),
    (Reply(9, "no such job", "not_found"), "940809ab6e6f2073756368206a6f62a96e6f745f666f756e64"),
    (CertificateRequest(5, b"-----BEGIN"), "930905c40a2d2d2d2d2d424547494e"),
    (
        Welcome(1, "c-1", "kp-test", 1800000000.5, 2.0, b"k" * 32, 3, ["streams"]),
        "992001a3632d31a76b702d74657374cb41dad27480200000cb4000000000000000c4206b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b0391a773747265616d73",
    ),
    (HeartbeatAck(41, 1800000000.5), "932129cb41dad27480200000"),
    (
        StartAttempt(
            6,
            "j-1",
            0,
            2,
            "train",
            "make",
            "python train.py",
            {"A": "b"},
            LIMITS,
            [0, 1],
            5.0,
            60.0,
            1048576,
            {"TOKEN": "x"},
            "default",
            "ann",
        ),
        "dc00112206a36a2d310002a5747261696ea46d616b65af707974686f6e20747261696e2e707981a141a16294cd03e8cd0200cd040040920001cb4014000000000000cb404e000000000000ce0010000081a5544f4b454ea178a764656661756c74a3616e6e",
    ),
    (StopAttempt(7, "j-1", 0, 2, EndReason.PREEMPTED, 3.5), "972307a36a2d310002a9707265656d70746564cb400c000000000000"),
    (AckAttempts([("j-1", 0, 2), ("j-2", 1, 1)]), "92249293a36a2d31000293a36a2d320101"),
    (ForgetJobs(["j-1", "j-2"]), "922592a36a2d31a36a2d32"),
    (
        CreateSandboxes(
            8, ["sb-a", "sb-b"], TEMPLATE, 600.0, 30.0, COMMAND, True, {"A": "b"}, {"run": "7"}, "default", "ann"
        ),
        "9c260892a473622d61a473622d6297a4686f737494cd03e8cd0200cd040040a4726f6f74a12f81a141a162a46e6f6e65c3cb4082c00000000000cb403e0000000000009793a27368a22d63a47472756581a141a162a52f726f6f74a3616e6ecb4004000000000000c402696ecd1000c381a141a16281a372756ea137a764656661756c74a3616e6e",
    ),
    (RemoveSandboxes(9, ["sb-a"], EndReason.POLICY), "94270991a473622d61a6706f6c696379"),
    (ExtendSandbox(10, "sb-a", 60.0), "94280aa473622d61cb404e000000000000"),
    (
        SetPools(11, [PoolTarget(TEMPLATE, 16, 300.0)]),
        "93290b919397a4686f737494cd03e8cd0200cd040040a4726f6f74a12f81a141a162a46e6f6e65c310cb4072c00000000000",
    ),
    (
        CertificateIssued(5, b"-----BEGIN", b"-----BEGIN", "removed"),
        "952a05c40a2d2d2d2d2d424547494ec40a2d2d2d2d2d424547494ea772656d6f766564",
    ),
    (DataKey(4, b"k" * 32), "932b04c4206b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b"),
    (
        StreamOpen(2, "ann", "sandbox/sb-a", ["exec", "read"], 262144),
        "964002a3616e6eac73616e64626f782f73622d6192a465786563a472656164ce00040000",
    ),
    (StreamData(2, b"hello"), "934102c40568656c6c6f"),
    (StreamCredit(2, 131072), "934202ce00020000"),
    (StreamEof(2), "924302"),
    (StreamReset(2, "gone"), "934402a4676f6e65"),
    (Fragment(b"piece", last=True), "9345c4057069656365c3"),
]


@pytest.mark.parametrize(("message", "golden"), GOLDEN, ids=lambda value: type(value).__name__)
def test_released_bytes_are_still_understood(message: Message, golden: str) -> None:
    """An agent of the first release links to today's coordinator, or the other way round."""
    assert decode(bytes.fromhex(golden)) == message


@pytest.mark.parametrize(("message", "golden"), GOLDEN, ids=lambda value: type(value).__name__)
def test_today_s_bytes_begin_like_the_released_ones(message: Message, golden: str) -> None:
    """New fields stand at the end, so that an older other side reads what it knows and drops the rest."""
    assert grown_from(msgpack.unpackb(encode(message)), msgpack.unpackb(bytes.fromhex(golden)))


def grown_from(new: Any, old: Any) -> bool:
    """Whether `new` is `old` with nothing but items added at the ends of its arrays."""
    if isinstance(old, list) and isinstance(new, list):
        return len(new) >= len(old) and all(grown_from(n, o) for n, o in zip(new, old, strict=False))
    return bool(new == old)


def test_every_message_has_golden_bytes() -> None:
    """A new message was added and nobody pinned its bytes."""
    assert {type(message) for message, _golden in GOLDEN} == set(message_classes())
