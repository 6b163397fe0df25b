"""`kernpool api status`."""

import argparse
from typing import Any

from kernpool.cli.commands import FAILED
from kernpool.cli.common import add_json
from kernpool.cli.terminal import Terminal
from kernpool.embedded.layout import Home
from kernpool.embedded.processes import Process
from kernpool.embedded.start import agent_process, coordinator_process
from kernpool.endpoint import find_endpoint
from kernpool.errors import KernpoolError
from kernpool.sdk.client import Client


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_json(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Say whether the coordinator and the agent of this machine run; 1 when one of them does not."""
    home = Home.find()
    pids = {"coordinator": _pid(coordinator_process(home)), "agent": _pid(agent_process(home))}
    answer = _ask() if pids["coordinator"] else {"answers": False, "url": None, "nodes": {}}
    if arguments.json:
        terminal.document({**pids, **answer, "home": str(home.path)})
    else:
        where = f" at {answer['url']}" if answer["url"] else ""
        silent = "" if answer["answers"] or not pids["coordinator"] else ", but does not answer"
        terminal.line(f"coordinator  {_runs(pids['coordinator'])}{where}{silent}")
        terminal.line(f"agent        {_runs(pids['agent'])}")
        terminal.line(f"nodes        {', '.join(f'{n} {state}' for state, n in answer['nodes'].items()) or 'none'}")
        if not all(pids.values()):
            terminal.note("Start what is missing with: kernpool api start")
    return 0 if all(pids.values()) and answer["answers"] else FAILED


def _pid(process: Process | None) -> int | None:
    if process is None:
        return None
    with process:
        return process.pid


def _runs(pid: int | None) -> str:
    return f"runs (process {pid})" if pid else "does not run"


def _ask() -> dict[str, Any]:
    """Ask the coordinator for its nodes."""
    url = None
    nodes: dict[str, int] = {}
    try:
        endpoint = find_endpoint(environ={})
        url = endpoint.url
        with Client(endpoint=endpoint) as client:
            for node in client.nodes():
                nodes[node.state] = nodes.get(node.state, 0) + 1
    except KernpoolError:
        return {"answers": False, "url": url, "nodes": {}}
    return {"answers": True, "url": url, "nodes": nodes}
