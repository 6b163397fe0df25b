"""The bytes of kp-init's messages: the numbers of init/proto.h, a header of four 32-bit numbers, tagged values."""

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, final

from kernpool_sandbox.kpinit.errors import ProtocolError

PROTO_MIN: Final = 1
PROTO_MAX: Final = 1
FRAME_BYTES_MAX: Final = 128 * 1024
REPLY_BYTES_MAX: Final = 16 * 1024
FRAME_FDS_MAX: Final = 64


class Op(IntEnum):
    """What a message asks for, or (from EXEC_EXITED on) tells."""

    HELLO = 1
    PING = 2
    LIST = 3
    DEFINE = 16
    SPAWN = 17
    SPAWN_JOB = 18
    KILL = 19
    STOP = 20
    CLAIM = 32
    EXTEND = 33
    EXEC = 34
    SIGNAL = 35
    ACK = 36
    REATTACH = 37
    FILE = 38
    CONNECT = 39
    SHUTDOWN = 40
    JOB_STOP = 64
    EXEC_EXITED = 128
    STEP_STARTED = 129
    LOG_GREW = 130
    JOB_EXITED = 131
    CHILD_ENDED = 132


class Tag(IntEnum):
    """What a value of a message means."""

    ID = 1
    BOOT_ID = 2
    KIND = 3
    DETAIL = 4
    CLAIMED = 5
    TTL_LEFT_MS = 6
    COUNT = 7
    PRIVILEGED = 8
    STATE_DIR = 9
    FLAGS = 10
    ROW = 11
    USAGE = 12
    TEMPLATE = 16
    MOUNT = 17
    UID_START = 18
    UID_COUNT = 19
    HOSTNAME = 20
    CGROUP = 21
    PARKED_TTL_MS = 22
    RLIMIT = 23
    ARG = 32
    ENV = 33
    CWD = 34
    USER = 35
    TIMEOUT_MS = 36
    RING_BYTES = 37
    TOKEN = 38
    TTL_MS = 39
    ENTROPY = 40
    CAUSE = 41
    STREAM = 42
    PATH = 48
    TO = 49
    OFFSET = 50
    LIMIT = 51
    MODE = 52
    MOVED = 53
    STEP = 64
    UID = 65
    GID = 66
    GROUP = 67
    LOG_BYTES_MAX = 68
    SEGMENT_BYTES = 69
    GRACE_MS = 70


_HEADER: Final = struct.Struct("<IIii")
_TLV: Final = struct.Struct("<II")
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")


@final
@dataclass(slots=True)
class Frame:
    """One message with the descriptors that came with it; whoever handles it takes or closes them."""

    op: int
    seq: int
    a: int
    b: int
    body: bytes
    fds: list[int]

    def values(self) -> Mapping[int, bytes]:
        """Return the first value of each tag."""
        found: dict[int, bytes] = {}
        for tag, value in self.all_values():
            found.setdefault(tag, value)
        return found

    def all_values(self) -> Iterator[tuple[int, bytes]]:
        """Yield every (tag, value) in order; raises ProtocolError when the body is cut short."""
        position, end = 0, len(self.body)
        while position < end:
            if end - position < _TLV.size:
                raise ProtocolError(f"a message {self.op} ends within a value's header")
            tag, length = _TLV.unpack_from(self.body, position)
            position += _TLV.size
            if length > end - position:
                raise ProtocolError(f"a message {self.op} ends within the value of tag {tag}")
            yield tag, self.body[position : position + length]
            position += length


def decode(packet: bytes, fds: list[int]) -> Frame:
    """Decode a packet; raises ProtocolError on one that has no whole header."""
    if len(packet) < _HEADER.size:
        raise ProtocolError(f"a message of {len(packet)} bytes is shorter than a header")
    op, seq, a, b = _HEADER.unpack_from(packet)
    return Frame(op, seq, a, b, packet[_HEADER.size :], fds)


def encode(op: Op, seq: int, a: int = 0, b: int = 0, body: bytes = b"") -> bytes:
    """Encode a message."""
    return _HEADER.pack(op, seq, a, b) + body


def put_bytes(tag: Tag, value: bytes) -> bytes:
    """Encode a value as it is."""
    return _TLV.pack(tag, len(value)) + value


def put_u32(tag: Tag, value: int) -> bytes:
    """Encode a 32-bit number."""
    return _TLV.pack(tag, 4) + _U32.pack(value)


def put_u64(tag: Tag, value: int) -> bytes:
    """Encode a 64-bit number."""
    return _TLV.pack(tag, 8) + _U64.pack(value)


def c_string(text: str) -> bytes:
    """Encode a string with its NUL; raises ValueError for one that has a NUL inside."""
    data = text.encode("utf-8", "surrogateescape")
    if b"\0" in data:
        raise ValueError(f"a NUL byte in {text!r}")
    return data + b"\0"


def put_str(tag: Tag, text: str) -> bytes:
    """Encode a string."""
    return put_bytes(tag, c_string(text))


def put_strs(tag: Tag, texts: Iterable[str]) -> bytes:
    """Encode several strings under one tag, in order."""
    return b"".join([put_str(tag, text) for text in texts])


def put_env(env: Mapping[str, str]) -> bytes:
    """Encode environment variables."""
    return put_strs(Tag.ENV, [f"{name}={value}" for name, value in env.items()])


def get_u32(value: bytes) -> int:
    """Decode a 32-bit number; raises ProtocolError."""
    if len(value) != _U32.size:
        raise ProtocolError(f"a 32-bit number of {len(value)} bytes")
    number: int = _U32.unpack(value)[0]
    return number


def get_u64(value: bytes) -> int:
    """Decode a 64-bit number; raises ProtocolError."""
    if len(value) != _U64.size:
        raise ProtocolError(f"a 64-bit number of {len(value)} bytes")
    number: int = _U64.unpack(value)[0]
    return number


def get_str(value: bytes) -> str:
    """Decode a string."""
    return value.removesuffix(b"\0").decode("utf-8", "surrogateescape")
