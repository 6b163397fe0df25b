"""Reads the first answer on a connection."""

from kernpool_sandbox.kpinit.channel import close_all
from kernpool_sandbox.kpinit.errors import ProtocolError
from kernpool_sandbox.kpinit.plan import Hello, Kind
from kernpool_sandbox.kpinit.wire import Frame, Tag, get_str, get_u32, get_u64


def decode_hello(frame: Frame, wanted: Kind) -> Hello:
    """Decode a hello, which owns the pidfd from now on; raises ProtocolError when somebody else answered."""
    values = frame.values()
    kind = get_u32(values.get(Tag.KIND, b"\0\0\0\0"))
    if kind != wanted or len(frame.fds) > 1:
        close_all(frame.fds)
        raise ProtocolError(f"expected the hello of a {wanted.name.lower()}, got that of kind {kind}")
    ttl = values.get(Tag.TTL_LEFT_MS)
    return Hello(
        proto=frame.a,
        kind=wanted,
        id=get_str(values[Tag.ID]),
        boot_id=get_str(values[Tag.BOOT_ID]),
        claimed=bool(get_u32(values[Tag.CLAIMED])) if Tag.CLAIMED in values else False,
        ttl_left_ms=-1 if ttl is None else get_u64(ttl),
        execs=get_u32(values[Tag.COUNT]) if Tag.COUNT in values else 0,
        pidfd=frame.fds[0] if frame.fds else -1,
    )
