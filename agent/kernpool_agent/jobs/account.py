"""The account that jobs run as, from the machine's user database (DECISIONS 13: never the agent's own on a root install)."""

import os
import pwd
from dataclasses import dataclass
from typing import final

from kernpool_agent.jobs.errors import JobStartError


@final
@dataclass(frozen=True, slots=True)
class JobAccount:
    """Identity and login facts of the user that jobs run as."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    """Supplementary groups."""
    home: str
    shell: str


def account_named(name: str) -> JobAccount:
    """Look up an account; raises JobStartError when the machine has none of that name."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise JobStartError(
            f"the job user {name!r} does not exist on this node; create it (useradd -m {name}) or set another job_user"
        ) from None
    groups = tuple(sorted(set(os.getgrouplist(name, entry.pw_gid)) - {entry.pw_gid}))
    return JobAccount(name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir or "/", entry.pw_shell or "/bin/sh")


def own_account() -> JobAccount:
    """Describe the account of this very process: jobs of an agent without privileges run as it."""
    uid, gid = os.geteuid(), os.getegid()
    groups = tuple(sorted(set(os.getgroups()) - {gid}))
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:  # a container that was given a bare number
        return JobAccount(str(uid), uid, gid, groups, os.environ.get("HOME") or "/", "/bin/sh")
    return JobAccount(entry.pw_name, uid, gid, groups, entry.pw_dir or "/", entry.pw_shell or "/bin/sh")
