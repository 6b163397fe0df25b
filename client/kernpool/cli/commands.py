"""The table of commands: words, module, one line of help, and how the words after it are read."""

from dataclasses import dataclass
from typing import Final, final

FAILED: Final = 1
USAGE: Final = 2
PASS_THROUGH_FAILED: Final = 125
"""Where the exit status is that of a job or command, Kernpool's own failure has this one, as with docker."""


@final
@dataclass(frozen=True, slots=True)
class Command:
    """One command."""

    words: str
    """As typed: `sandbox create`."""
    module: str
    """Below kernpool.cli; it has `add_arguments(parser)` and `run(arguments, terminal)`."""
    help: str
    group: str
    takes_command: bool = False
    """What follows `--` is a command for elsewhere."""
    passes_status: bool = False
    """Its exit status may be that of a job or command."""


JOBS, SANDBOXES, NODES, SERVER = "Jobs", "Sandboxes", "Nodes and access", "This machine"

COMMANDS: Final = (
    Command(
        "launch",
        "launch",
        "run a task: a YAML file, or a command after --",
        JOBS,
        takes_command=True,
        passes_status=True,
    ),
    Command(
        "exec",
        "exec_job",
        "run a task in the queue of a cluster that is there",
        JOBS,
        takes_command=True,
        passes_status=True,
    ),
    Command("status", "status", "everything at a glance", JOBS),
    Command("queue", "queue", "jobs that run, wait, and ended lately", JOBS),
    Command("logs", "logs", "the log of a job, as it comes", JOBS, passes_status=True),
    Command("cancel", "cancel", "end jobs", JOBS),
    Command("down", "down", "end clusters: their jobs and their hold", JOBS),
    Command(
        "sandbox create",
        "sandbox_create",
        "make sandboxes, and run a command in each",
        SANDBOXES,
        takes_command=True,
        passes_status=True,
    ),
    Command("sandbox ls", "sandbox_ls", "list sandboxes", SANDBOXES),
    Command("sandbox show", "sandbox_show", "everything about one sandbox", SANDBOXES),
    Command(
        "sandbox exec", "sandbox_exec", "run a command in a sandbox", SANDBOXES, takes_command=True, passes_status=True
    ),
    Command("sandbox cp", "sandbox_cp", "copy files into or out of a sandbox", SANDBOXES),
    Command("sandbox extend", "sandbox_extend", "count the time to live of sandboxes anew", SANDBOXES),
    Command("sandbox rm", "sandbox_rm", "remove sandboxes", SANDBOXES),
    Command("sandbox pool ls", "pool_ls", "list the parked pools that were set", SANDBOXES),
    Command("sandbox pool set", "pool_set", "keep sandboxes of a template parked", SANDBOXES),
    Command("sandbox pool rm", "pool_rm", "drain a parked pool", SANDBOXES),
    Command("node ls", "node_ls", "list nodes", NODES),
    Command("node show", "node_show", "everything about one node", NODES),
    Command("node rm", "node_rm", "put nodes out of the mesh", NODES),
    Command("join-token create", "join_token_create", "make a token with which machines join", NODES),
    Command("join-token ls", "join_token_ls", "list join tokens", NODES),
    Command("join-token rm", "join_token_rm", "make join tokens worthless", NODES),
    Command("token create", "token_create", "make a token of the API", NODES),
    Command("token ls", "token_ls", "list tokens of the API", NODES),
    Command("token rm", "token_rm", "make tokens of the API worthless", NODES),
    Command("events", "events", "what changed, who did it and why", NODES),
    Command("check", "check", "what works on this machine, and why not", SERVER),
    Command("api start", "api_start", "start the coordinator and the agent of this machine", SERVER),
    Command("api stop", "api_stop", "stop them, and the work on this machine", SERVER),
    Command("api status", "api_status", "whether they run", SERVER),
    Command("api info", "api_info", "addresses, files and versions", SERVER),
    Command("completion", "completion", "completion for bash, zsh or fish", SERVER),
)
BY_WORDS: Final = {command.words: command for command in COMMANDS}
GROUP_WORDS: Final = {
    " ".join(parts[:length])
    for command in COMMANDS
    for parts in [command.words.split()]
    for length in range(1, len(parts))
}
"""Words that need another word: `sandbox`, `sandbox pool`, ..."""
