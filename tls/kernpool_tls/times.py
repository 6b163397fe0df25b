"""How long certificates live, and the one place where wall clocks of two machines are compared."""

import datetime
from typing import Final

from kernpool_tls.errors import ClockSkewError

NODE_LIFETIME_S: Final = 24 * 3600
SERVER_LIFETIME_S: Final = 7 * 86400
AUTHORITY_LIFETIME_S: Final = 10 * 365 * 86400
BACKDATE_S: Final = 3600
"""Certificates begin so long before they were signed, because clocks differ."""
EXPIRED_RENEWAL_S_MAX: Final = 7 * 86400
"""For so long after its end a genuine certificate may still renew."""
CLOCK_SKEW_S_MAX: Final = 300


def check_clock_skew(node_unix_s: float, server_unix_s: float) -> None:
    """Raises ClockSkewError, naming both times, when the clocks differ by more than CLOCK_SKEW_S_MAX."""
    skew_s = node_unix_s - server_unix_s
    if abs(skew_s) > CLOCK_SKEW_S_MAX:
        ahead = "ahead of" if skew_s > 0 else "behind"
        raise ClockSkewError(
            f"the node's clock says {format_utc(node_unix_s)}, the coordinator's {format_utc(server_unix_s)}: the node "
            f"is {abs(skew_s):.0f} s {ahead} it, {CLOCK_SKEW_S_MAX} s are allowed; set the clocks (NTP) and retry"
        )


def renew_at_unix_s(not_before_unix_s: float, not_after_unix_s: float, jitter: float) -> float:
    """When to renew: at half of the life since signing, up to a tenth of it earlier or later by `jitter` in [0, 1)."""
    signed_unix_s = not_before_unix_s + BACKDATE_S
    life_s = not_after_unix_s - signed_unix_s
    return signed_unix_s + life_s * (0.5 + 0.2 * (jitter - 0.5))


def format_utc(unix_s: float) -> str:
    """`2026-11-30 23:07:40 UTC`; the bare number when no calendar holds it."""
    try:
        return datetime.datetime.fromtimestamp(unix_s, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{unix_s:.0f} s since 1970"
