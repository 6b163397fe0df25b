"""The agent as a whole: wires the parts together, takes the node's work over, links, and lets go of it in the end.

    lock -> journal -> spawner and sandboxes -> jobs -> adopt -> ready -> enrol -> listener -> link ... -> detach

Work comes first: it is adopted and followed whether a coordinator is there or not. Each notable step logs one sentence.
"""

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Self, final

from kernpool_agent import __version__, ceiling, enrol, machine, records
from kernpool_agent.attempts import Attempts
from kernpool_agent.backoff import Backoff
from kernpool_agent.capacity import Capacity
from kernpool_agent.ceiling import Ceiling
from kernpool_agent.clock import CoordinatorClock
from kernpool_agent.config import Config
from kernpool_agent.connection import Connection
from kernpool_agent.dataplane.access import DoorAuthorizer
from kernpool_agent.dataplane.listener import Listener
from kernpool_agent.dataplane.plane import make_app
from kernpool_agent.dataplane.server import DataServer
from kernpool_agent.dataplane.streams import StreamDoor
from kernpool_agent.datakeys import DataKeys
from kernpool_agent.errors import AgentError, UnreachableError
from kernpool_agent.fences import Fences, Phase
from kernpool_agent.gpu.client import GpuClient
from kernpool_agent.inventory import InventoryTaker
from kernpool_agent.jobs.errors import JobStartError
from kernpool_agent.jobs.runtime import JobConfig, JobRuntime
from kernpool_agent.journal import Journal
from kernpool_agent.metrics import Metrics, Sample
from kernpool_agent.renew import Renewal
from kernpool_agent.sandboxes import Sandboxes
from kernpool_agent.spawner import runtime_config
from kernpool_agent.statedir import StateDir
from kernpool_agent.systemd import Notifier
from kernpool_agent.uplink import Uplink
from kernpool_mesh import messages as m
from kernpool_mesh.stream import LinkStream
from kernpool_sandbox.runtime import SandboxRuntime
from kernpool_tls.contexts import data_plane_listener_context, reload_certificate
from kernpool_tls.identity import Identity
from kernpool_tls.keys import NodeKeys
from kernpool_tls.names import COORDINATOR_DNS_NAME

log = logging.getLogger(__name__)
