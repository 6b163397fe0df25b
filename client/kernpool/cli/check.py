"""`kernpool check`: works without a running coordinator and starts nothing."""

import argparse
import os
import platform
from dataclasses import asdict
from typing import Any

from kernpool.cli.commands import FAILED
from kernpool.cli.common import add_json
from kernpool.cli.machine import Finding, gpus, jobs, sandboxes
from kernpool.cli.terminal import Terminal
from kernpool.endpoint import find_endpoint
from kernpool.errors import KernpoolError
from kernpool.units import show_mib, show_number

EPILOG = "The exit status is 0 when jobs can run here, else 1."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_json(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Look at this machine and at the coordinator."""
    terminal.status("Looking at this machine ...")
    findings = [jobs(), sandboxes(), gpus(), coordinator()]
    machine = this_machine()
    if arguments.json:
        terminal.document({"machine": machine, **{finding.what: asdict(finding) for finding in findings}})
    else:
        terminal.line(
            f"{machine['hostname']}: {show_number(machine['cpus'])} CPUs, {show_mib(machine['memory_mib'])} memory,"
            f" Linux {machine['kernel']}, {machine['arch']}"
        )
        terminal.details({finding.what: _text(finding) for finding in findings})
    return 0 if findings[0].works else FAILED


def _text(finding: Finding) -> str:
    first = f"{'yes' if finding.works else 'no'}: {finding.summary}"
    return "\n".join([first, *finding.problems])


def this_machine() -> dict[str, Any]:
    """Say what this machine is."""
    memory = 0
    try:
        with open("/proc/meminfo", encoding="ascii") as file:  # noqa: PTH123 - a Path would not help
            memory = int(file.readline().split()[1]) // 1024
    except (OSError, ValueError, IndexError):
        memory = 0
    return {
        "hostname": platform.node(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_mib": memory,
        "kernel": platform.release(),
        "arch": platform.machine(),
    }


def coordinator() -> Finding:
    """Say whether a coordinator is named or runs here, and answers."""
    from kernpool.cli.common import endpoint
    from kernpool.sdk.client import Client

    try:
        with Client(endpoint=endpoint()) as client:
            status = client.status()
            url = client.endpoint.url
    except KernpoolError as error:
        try:
            where = find_endpoint().url
        except KernpoolError:
            where = ""
        summary = error.message if where else "none runs here; the first command that makes something starts one"
        return Finding("coordinator", works=False, summary=summary, problems=())
    ready = sum(node.state == "ready" for node in status.nodes)
    return Finding("coordinator", works=True, summary=f"{url}, {ready} of {len(status.nodes)} nodes ready", problems=())
