"""The one name of an attempt on its node: supervisor, directory, socket and cgroup are all called by it.

It begins with `j-`, as job ids do: so the node's cgroups of jobs are told from those of sandboxes.
"""

import re
from typing import Final

from kernpool_agent.records import AttemptKey

_NAME: Final = re.compile(r"(?P<job>j-[A-Za-z0-9_-]{1,40})\.(?P<index>\d{1,6})\.(?P<fence>\d{1,12})\Z")


def name_of(key: AttemptKey) -> str:
    """Give the name of an attempt, e.g. `j-17.0.3`; raises ValueError for an id that cannot be a file name."""
    name = f"{key.job_id}.{key.index}.{key.fence}"
    if _NAME.match(name) is None:
        raise ValueError(f"{key.job_id!r} rank {key.index} fence {key.fence} cannot name an attempt")
    return name


def key_of(name: str) -> AttemptKey | None:
    """Give the attempt of this name; None for a name that is none of ours."""
    found = _NAME.match(name)
    if found is None:
        return None
    return AttemptKey(found["job"], int(found["index"]), int(found["fence"]))
