"""The data plane of one node: exec round trips, files and log latency over direct TLS; one command, one table.

The node runs in a process of its own (uvloop, as the agent does); the client is http.client over one kept-alive TLS
connection, as the synchronous SDK is.
"""

import argparse
import asyncio
import http.client
import json
import multiprocessing
import os
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import uvloop

from kernpool_agent.ceiling import User
from kernpool_agent.dataplane.access import DoorAuthorizer
from kernpool_agent.dataplane.listener import Listener
from kernpool_agent.dataplane.plane import make_app
from kernpool_agent.dataplane.server import DataServer
from kernpool_agent.jobs.runtime import JobConfig, JobRuntime
from kernpool_mesh import datatoken
from kernpool_mesh.messages import AttemptState, AttemptStatus, Limits, StartAttempt, Template
from kernpool_mesh.reasons import EndReason
from kernpool_sandbox.config import RuntimeConfig
from kernpool_sandbox.runtime import SandboxRuntime

NODE_ID = "n-abcdefghijkl"
SANDBOX_ID = "sb-aaaaaaaaaaaaaaaa"
KEY = b"k" * datatoken.KEY_BYTES


def make_identity(directory: Path) -> Path:
    """Write a self-signed certificate with its key; who is trusted is not measured here."""
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "bench")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path = directory / "node.pem"
    path.write_bytes(pem + builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    return path


async def node(state_dir: Path, pipe: Connection) -> None:
    """Serve one sandbox and start jobs when told to, until the pipe says stop."""
    uid = os.geteuid()
    user = User("me", uid, os.getegid(), (), str(state_dir))
    ended: asyncio.Queue[AttemptStatus] = asyncio.Queue()
    async with AsyncExitStack() as stack:
        runtime = await SandboxRuntime.open(
            RuntimeConfig(state_dir, job_ids=((uid, uid),)), on_update=lambda _statuses: None
        )
        stack.push_async_callback(runtime.shutdown)
        jobs = await JobRuntime.open(
            JobConfig(state_dir=state_dir, user=user),
            runtime.living_spawner,
            runtime.cgroups,
            on_update=lambda status: ended.put_nowait(status) if status.state is AttemptState.ENDED else None,
        )
        stack.push_async_callback(jobs.close)
        authorizer = DoorAuthorizer(NODE_ID, lambda: {1: KEY}, time.time)
        server = await DataServer.open(make_app(runtime, jobs, authorizer))
        stack.push_async_callback(server.close)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(make_identity(state_dir))
        listener = await Listener.open(server, context, ["127.0.0.1"], 0)
        stack.push_async_callback(listener.close)
        await runtime.create(SANDBOX_ID, Template(limits=Limits(memory_mib=512, disk_mib=256, pids=256)), ttl_s=600)
        pipe.send(listener.port)
        await serve_jobs(jobs, ended, pipe)


async def serve_jobs(jobs: JobRuntime, ended: "asyncio.Queue[AttemptStatus]", pipe: Connection) -> None:
    """Start `echo hi` for each number that comes; None stops."""
    loop = asyncio.get_running_loop()
    while True:
        readable: asyncio.Future[None] = loop.create_future()
        loop.add_reader(pipe.fileno(), readable.set_result, None)
        await readable
        loop.remove_reader(pipe.fileno())
        number = pipe.recv()
        if number is None:
            return
        await jobs.start(StartAttempt(0, f"j-{number}", 0, 1, "bench", "", "echo hi", {}, Limits()))
        pipe.send("started")
        assert (await ended.get()).reason is EndReason.EXITED


def serve(state_dir: Path, pipe: Connection) -> None:
    """Be the node's process."""
    uvloop.run(node(state_dir, pipe))


class Client:
    """One kept-alive TLS connection."""

    def __init__(self, port: int) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._connection = http.client.HTTPSConnection("127.0.0.1", port, context=context)

    def request(self, method: str, path: str, object_: str, verb: str, body: bytes = b"") -> bytes:
        """Ask and read the whole answer; every request is signed anew, as a client with a cached token would not."""
        now = int(time.time())
        token = datatoken.sign(KEY, 1, datatoken.Claims(NODE_ID, object_, (verb,), now + 60, "bench"), now)
        self._connection.request(method, path, body, {"Authorization": f"Bearer {token}"})
        response = self._connection.getresponse()
        data = response.read()
        if response.status >= 300:
            raise SystemExit(f"{method} {path}: {response.status} {data!r}")
        return data

    def exec(self, *argv: str) -> bytes:
        """Run a command in the sandbox."""
        body = json.dumps({"argv": argv}).encode()
        return self.request("POST", f"/v1/sandboxes/{SANDBOX_ID}/exec", f"sandbox/{SANDBOX_ID}", "exec", body)


def timed(rounds: int, action: Callable[[], object]) -> list[float]:
    """Do it so often; returns milliseconds, sorted, without the first tenth."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        action()
        times.append((time.perf_counter() - start) * 1e3)
    return sorted(times[rounds // 10 :])


def show(what: str, pid: int, rounds: int, action: Callable[[], object]) -> None:
    """Measure and print one row."""
    before = cpu_s(pid)
    times = timed(rounds, action)
    cpu_ms = (cpu_s(pid) - before) * 1e3 / rounds
    p50, p99 = statistics.median(times), times[int(len(times) * 0.99)]
    sys.stdout.write(f"{what:<58}{p50:>10.2f}{p99:>10.2f}{cpu_ms:>14.2f}\n")


def cpu_s(pid: int) -> float:
    """Tell the CPU seconds a process has used: unlike a latency, no other work of the machine changes them."""
    used = psutil.Process(pid).cpu_times()
    return float(used.user + used.system)


def first_log_byte(client: Client, pipe: Connection, number: int) -> None:
    """From the order to start a job to the first byte of its log at the client."""
    pipe.send(number)
    pipe.recv()
    path = f"/v1/jobs/j-{number}/0/logs?follow=1"
    if client.request("GET", path, f"job/j-{number}", "logs") != b"hi\n":
        raise SystemExit("the job's log is not what it printed")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    rounds = parser.parse_args().rounds
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="kpb") as directory:
        mine, theirs = context.Pipe()
        process = context.Process(target=serve, args=(Path(directory), theirs))
        process.start()
        client = Client(mine.recv())
        pid = process.pid or 0
        load = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, one client"
        sys.stdout.write(f"{load:<58}{'p50 ms':>10}{'p99 ms':>10}{'node CPU ms':>14}\n")
        show("an answer without work (404), direct TLS", pid, rounds, lambda: nothing(client))
        show("exec `true` in a live sandbox, direct TLS, kept alive", pid, rounds, lambda: client.exec("true"))
        show("exec `echo hi`", pid, rounds, lambda: client.exec("echo", "hi"))
        numbers = iter(range(1, rounds + 2))
        show(
            "job `echo hi`: start, its log followed to the end",
            pid,
            max(20, rounds // 10),
            lambda: first_log_byte(client, mine, next(numbers)),
        )
        size = 64 << 20
        path, grant = f"/v1/sandboxes/{SANDBOX_ID}/files?path=/tmp/bulk", f"sandbox/{SANDBOX_ID}"
        (up,) = timed(1, lambda: client.request("PUT", path, grant, "write", b"x" * size))
        (down,) = timed(1, lambda: client.request("GET", path, grant, "read"))
        sys.stdout.write(f"a file of 64 MiB: up {size / up / 1048.576:.0f} MiB/s, ")
        sys.stdout.write(f"down {size / down / 1048.576:.0f} MiB/s\n")
        mine.send(None)
        process.join(30)


def nothing(client: Client) -> None:
    """Ask for an address that is not there."""
    try:
        client.request("GET", "/nowhere", "job/j-1", "logs")
    except SystemExit:
        return


if __name__ == "__main__":
    main()
