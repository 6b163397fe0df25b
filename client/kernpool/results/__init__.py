"""What the API tells, as frozen records. Times are Unix seconds in `*_unix_s` and durations in `*_s`.

Most keep the JSON object that they were read from in `raw`, where fields of newer servers can be found.
"""

from kernpool.results.commands import CommandResult, read_problem
from kernpool.results.fleet import Amounts, ClusterInfo, NodeInfo, ServerInfo, Status
from kernpool.results.jobs import JOB_ENDS, AttemptInfo, JobInfo
from kernpool.results.sandboxes import Created, FileInfo, Limits, Pool, Removed, SandboxInfo, Template
from kernpool.results.tokens import Access, ApiToken, Event, JoinToken

__all__ = [
    "JOB_ENDS",
    "Access",
    "Amounts",
    "ApiToken",
    "AttemptInfo",
    "ClusterInfo",
    "CommandResult",
    "Created",
    "Event",
    "FileInfo",
    "JobInfo",
    "JoinToken",
    "Limits",
    "NodeInfo",
    "Pool",
    "Removed",
    "SandboxInfo",
    "ServerInfo",
    "Status",
    "Template",
    "read_problem",
]
