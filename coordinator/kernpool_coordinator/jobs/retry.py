"""What a job's end means for its next try, by end reason."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

from kernpool_mesh.reasons import EndReason


@final
@dataclass(frozen=True, slots=True)
class RetryRule:
    """When a try that ended for this reason is followed by another."""

    tries: int = 0
    """Further tries that this reason may cause in the life of a job; 0: never."""
    delay_s: float = 1.0
    """Before the first of them; doubled for each further one."""
    delay_s_max: float = 60.0


NEVER: Final = RetryRule()

RETRY: Final[Mapping[EndReason, RetryRule]] = {
    # The work itself ended: running it again is the task's own business (job_recovery).
    EndReason.EXITED: NEVER,
    EndReason.KILLED: NEVER,
    EndReason.TIMEOUT: NEVER,
    EndReason.OOM: NEVER,
    EndReason.DISK_FULL: NEVER,
    EndReason.CANCELLED: NEVER,
    EndReason.POLICY: NEVER,
    EndReason.TTL: NEVER,
    EndReason.IDLE: NEVER,
    # It may have done half of its work, and nobody knows which half.
    EndReason.LOST: NEVER,
    # Not its own fault, and known not to run any more (or fenced off).
    EndReason.NODE_LOST: RetryRule(tries=5, delay_s=1.0),
    EndReason.DRAINED: RetryRule(tries=1000, delay_s=0.0),
    EndReason.PREEMPTED: RetryRule(tries=1000, delay_s=1.0),
    EndReason.START_FAILED: RetryRule(tries=3, delay_s=1.0),
    EndReason.IMAGE_FAILED: RetryRule(tries=2, delay_s=5.0),
}


def delay_before(rule: RetryRule, failures: int, jitter: float) -> float:
    """Seconds before the try after the `failures`-th failure (from 1); `jitter` in [0, 1) spreads a crowd."""
    doublings = min(32, max(0, failures - 1))
    return min(rule.delay_s_max, rule.delay_s * 2.0**doublings) * (0.75 + 0.5 * jitter)
