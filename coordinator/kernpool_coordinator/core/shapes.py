"""Small records that cross between the core and its callers and are no HTTP bodies."""

from dataclasses import dataclass
from typing import Any, final


@final
@dataclass(frozen=True, slots=True)
class Listing:
    """A page of a listing: dicts shaped like their body, and the cursor of the next page or empty."""

    items: list[dict[str, Any]]
    next: str = ""


@final
@dataclass(frozen=True, slots=True)
class Enrolment:
    """What a node showed at POST /node/v1/enrol, once its CSR was checked."""

    token_id: str
    secret: str
    hostname: str
    agent_version: str


@final
@dataclass(frozen=True, slots=True)
class EnrolledNode:
    """The identity that the coordinator minted (DECISIONS 16)."""

    node_id: str
    pool: str
    generation: int
    """1 at first; grows with each re-enrolment, which revokes the certificates before it."""


@final
@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate that was signed for a node."""

    node_id: str
    serial: str
    """Hexadecimal."""
    generation: int
    expires_unix_s: float


@final
@dataclass(frozen=True, slots=True)
class AttemptPlace:
    """Where one rank of a job runs, ran last, or will run."""

    job_id: str
    index: int
    fence: int
    """0: never placed."""
    node_id: str
    """Empty: not placed yet."""
    started: bool
    """Its node said that it began (setting up or beyond), so it has a log."""
    ended: bool
    """It is over and will not run again under this fence."""
    job_ended: bool
    """The whole job is over."""
