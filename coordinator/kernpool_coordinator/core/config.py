"""What the core is told at its start: where its state lies, its names, and every interval and limit it keeps."""

from dataclasses import dataclass
from pathlib import Path
from typing import final


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CoreConfig:
    """Settings of one ControlPlane; the defaults are those of the embedded install."""

    state_dir: Path
    """0700; holds `kernpool.db` and the key file."""
    database_url: str = ""
    """SQLAlchemy URL; empty: SQLite at `state_dir/kernpool.db`."""
    key_file: Path | None = None
    """32 bytes that seal secrets at rest; None: `state_dir/key`, made (0600) when missing."""
    cluster_id: str = "local"
    coordinator_id: str = "c-1"
    version: str = ""
    ca_pin: str = ""
    """`sha256:HEX` of the CA's key, as join tokens carry it."""
    node_url: str = ""
    """Where agents enrol and link."""
    heartbeat_interval_s: float = 2.0
    suspect_after_s: float = 6.0
    unreachable_after_s: float = 8.0
    node_lost_after_s: float = 300.0
    """Unreachable for so long, its attempts are node_lost for jobs that allow a replacement; others wait."""
    start_deadline_s: float = 30.0
    """A node that was sent StartAttempt answers within this, or the attempt is asked about anew."""
    reply_timeout_s: float = 15.0
    """Any other request to a node."""
    create_timeout_s: float = 120.0
    """From POST /sandboxes to its last item, without the command's own time."""
    jobs_kept: int = 10_000
    """Ended jobs kept in listings; older ones leave the store."""
    events_kept: int = 100_000
    features: tuple[str, ...] = ()
