"""Who owns the node's work: the spawner, found where kp-work.service runs it, else started beside an embedded agent.

Under systemd `kp-agent work` becomes the spawner in the foreground of kp-work.service, in a leaf cgroup of its own, so
that restarting kp-agent.service (or its death) touches no work. Embedded, it is started in a session of its own.
"""

import logging
from pathlib import Path

from kernpool_agent.ceiling import Ceiling, User
from kernpool_agent.config import Config
from kernpool_mesh.messages import Limits
from kernpool_sandbox.config import RuntimeConfig

log = logging.getLogger(__name__)

LEAF = "spawner"
"""Name of the spawner's own leaf below the unit's cgroup: v2 allows no processes beside divided children."""


def runtime_config(config: Config, ceiling: Ceiling, user: User) -> RuntimeConfig:
    """Return the sandbox runtime's settings under the owner's ceiling."""
    return RuntimeConfig(
        state_dir=config.work_dir,
        default_limits=Limits(0, config.sandbox_memory_mib_max, config.sandbox_disk_mib_max, config.sandbox_pids_max),
        image_roots=tuple(map(Path, ceiling.image_dirs)) or None,
        hidden_paths=(config.state_dir,),
        cgroup_parent=own_unit_cgroup(),
        cold_concurrency=config.creates_at_once,
        job_uids=((user.uid, user.uid),),
    )
