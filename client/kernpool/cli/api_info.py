"""`kernpool api info`."""

import argparse

from kernpool import __version__
from kernpool.cli import shown
from kernpool.cli.common import add_json, connect
from kernpool.cli.terminal import Terminal
from kernpool.embedded.layout import Home


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_json(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Say addresses, files and versions."""
    with connect(terminal) as client:
        info = client.info()
        endpoint = client.endpoint
    if arguments.json:
        terminal.document({**info.raw, "url": endpoint.url, "client_version": __version__})
        return 0
    values = {
        "url": endpoint.url,
        "version": f"{info.version} (this client: {__version__})",
        "started": shown.moment(info.started_unix_s),
        "cluster id": info.cluster_id,
        "agents dial": info.node_url,
        "CA pin": info.ca_pin,
    }
    if endpoint.embedded:
        home = Home.find()
        values |= {"home": str(home.path), "logs": f"{home.coordinator_log}\n{home.agent_log}"}
    terminal.details(values)
    return 0
