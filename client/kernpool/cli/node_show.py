"""`kernpool node show`."""

import argparse

from kernpool.cli import shown
from kernpool.cli.common import add_json, connect
from kernpool.cli.terminal import Terminal
from kernpool.results import NodeInfo
from kernpool.units import show_mib


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("node", metavar="NODE", help="id or name")
    add_json(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Show a node."""
    with connect(terminal) as client:
        node = client.node(arguments.node)
    if arguments.json:
        terminal.document(node.raw)
    else:
        terminal.details(details(node))
    return 0


def details(node: NodeInfo) -> dict[str, str]:
    """Write everything about a node in words."""
    seen = "never" if node.last_seen_s is None else f"{shown.age_of(node.last_seen_s)} ago"
    return {
        "name": node.name,
        "id": node.id,
        "state": f"{node.state}, seen {seen}",
        "pool": node.pool,
        "cpus": f"{shown.of(node.free.cpus, node.total.cpus)} free",
        "memory": f"{shown.free_memory(node)} free",
        "disk": f"{show_mib(node.free.disk_mib)} of {show_mib(node.total.disk_mib)} free",
        "gpus": "\n".join(map(_gpu, node.gpus)) or "none",
        "sandboxes": _sandboxes(node),
        "work": f"{node.jobs_running} jobs, {node.sandboxes_running} sandboxes, {node.sandboxes_parked} parked",
        "addresses": ", ".join(node.addresses) or "-",
        "labels": shown.pairs(node.labels),
        "agent": f"version {node.agent_version or '?'}, joined {shown.moment(node.joined_unix_s)}",
        "facts": "\n".join(f"{name}: {value}" for name, value in sorted(node.facts.items())) or "-",
    }


def _gpu(gpu: shown.Object) -> str:
    health = "" if gpu.get("healthy", True) else ", not healthy"
    memory = gpu.get("memory_mib")
    size = f", {show_mib(memory)}" if isinstance(memory, int | float) else ""
    return f"{gpu.get('index', '?')}: {gpu.get('name', '?')}{size}{health}"


def _sandboxes(node: NodeInfo) -> str:
    """Say what isolation is there, and what not and why."""
    works = [f"{name}{' (shares the kernel of the node)' if name == 'namespace' else ''}" for name in node.isolation]
    return "\n".join([", ".join(works) or "off", *node.isolation_problems])
