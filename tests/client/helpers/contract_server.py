"""A small server that speaks the API's contract and really runs commands: jobs and "sandboxes" are child processes.

It isolates nothing and places nothing. It stands for the coordinator where a test is about the client alone.
"""

import asyncio
import base64
import contextlib
import json
import os
import secrets
import shutil
import signal
import stat
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web

TOKEN = "kpt_test"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
NODE = {
    "id": "n-aaaabbbbcccc",
    "name": "box",
    "pool": "default",
    "state": "ready",
    "total": {"cpus": 2, "memory_mib": 24000, "disk_mib": 100000, "gpus": 0},
    "free": {"cpus": 1.5, "memory_mib": 23000, "disk_mib": 90000, "gpus": 0},
    "isolation": ["namespace"],
    "facts": {"kernel": "6.18"},
    "agent_version": "0.1.0",
    "sandboxes_parked": 8,
    "last_seen_s": 0.5,
    "joined_unix_s": 1_700_000_000.0,
}


def problem(status: int, code: str, message: str, hint: str = "", details: Any = ()) -> web.Response:
    """Make an error answer."""
    body = {"code": code, "message": message, "hint": hint, "details": list(details)}
    return web.json_response(body, status=status, content_type="application/problem+json")


class RefusedError(Exception):
    """A Problem on its way to the client."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.response = problem(*args)


@dataclass
class RunningJob:
    """One job and its process."""

    body: dict[str, Any]
    log: bytearray = field(default_factory=bytearray)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    process: asyncio.subprocess.Process | None = None
    log_start: int = 0
    fence: int = 1
    attempt_over: bool = False

    @property
    def ended(self) -> bool:
        return self.body["ended_unix_s"] is not None


class State:
    """All that the server holds."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.jobs: dict[str, RunningJob] = {}
        self.clusters: dict[str, dict[str, Any]] = {}
        self.sandboxes: dict[str, dict[str, Any]] = {}
        self.join_tokens: dict[str, dict[str, Any]] = {}
        self.tokens: dict[str, dict[str, Any]] = {}
        self.pools: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.event_added = asyncio.Condition()
        self.keys: dict[str, Any] = {}
        self.requests: list[tuple[str, str]] = []
        self.cuts: dict[str, int] = {}
        """Path prefix -> how many more answers to cut in the middle."""
        self.access: dict[str, Any] | None = None
        """What POST .../access gives; None: 409."""
        self.tasks: set[asyncio.Task[None]] = set()
        self.processes: list[asyncio.subprocess.Process] = []

    async def event(self, verb: str, object_: str) -> None:
        self.events.append(
            {
                "id": len(self.events) + 1, "at_unix_s": 1_700_000_000.0, "actor": "me", "verb": verb,
                "object": object_, "workspace": "default", "cause": "", "data": {},
            }
        )  # fmt: skip
        async with self.event_added:
            self.event_added.notify_all()

    def directory(self, sandbox_id: str) -> Path:
        if sandbox_id not in self.sandboxes:
            raise RefusedError(404, "not_found", f"There is no sandbox {sandbox_id}.", "kernpool sandbox ls")
        return self.root / sandbox_id

    def inside(self, request: web.Request, name: str = "path") -> Path:
        directory = self.directory(request.match_info["id"])
        return directory / request.query[name].lstrip("/")

    def should_cut(self, path: str) -> bool:
        for prefix, left in self.cuts.items():
            if left and path.startswith(prefix):
                self.cuts[prefix] -= 1
                return True
        return False


class Api:
    """The handlers."""

    def __init__(self, state: State) -> None:
        self.state = state

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self.guard], client_max_size=64 << 20)
        add = app.router.add_route
        prefix = "/api/v1"
        for method, path, handler in self.table():
            add(method, prefix + path, handler)
        for method, path, handler in self.table():
            if path.startswith(("/sandboxes/{id}/exec", "/sandboxes/{id}/files", "/sandboxes/{id}/ports")):
                add(method, "/v1" + path, handler)
        add("GET", "/v1/jobs/{id}/{index}/logs", self.job_logs)
        return app

    def table(self) -> list[tuple[str, str, Handler]]:
        return [
            ("GET", "/health", self.health), ("GET", "/info", self.info), ("GET", "/status", self.status),
            ("GET", "/nodes", self.nodes), ("GET", "/nodes/{id}", self.node),
            ("DELETE", "/nodes/{id}", self.node_rm),
            ("GET", "/clusters", self.cluster_list), ("GET", "/clusters/{id}", self.cluster),
            ("DELETE", "/clusters/{id}", self.down),
            ("POST", "/jobs", self.submit), ("GET", "/jobs", self.job_list), ("GET", "/jobs/{id}", self.job),
            ("POST", "/jobs/{id}/cancel", self.cancel), ("GET", "/jobs/{id}/wait", self.wait),
            ("GET", "/jobs/{id}/logs", self.job_logs), ("POST", "/jobs/{id}/access", self.give_access),
            ("POST", "/sandboxes", self.create), ("GET", "/sandboxes", self.sandbox_list),
            ("POST", "/sandboxes/remove", self.remove), ("GET", "/sandboxes/{id}", self.sandbox),
            ("POST", "/sandboxes/{id}/extend", self.extend), ("POST", "/sandboxes/{id}/access", self.give_access),
            ("POST", "/sandboxes/{id}/exec", self.exec_stream), ("GET", "/sandboxes/{id}/exec", self.exec_socket),
            ("GET", "/sandboxes/{id}/files", self.read), ("PUT", "/sandboxes/{id}/files", self.write),
            ("DELETE", "/sandboxes/{id}/files", self.unlink), ("POST", "/sandboxes/{id}/files/mkdir", self.mkdir),
            ("POST", "/sandboxes/{id}/files/move", self.move), ("GET", "/sandboxes/{id}/files/list", self.listdir),
            ("GET", "/sandboxes/{id}/files/stat", self.stat), ("GET", "/sandboxes/{id}/ports/{port}", self.port),
            ("GET", "/pools", self.get_pools), ("PUT", "/pools", self.put_pools),
            ("POST", "/join-tokens", self.join_token), ("GET", "/join-tokens", self.join_token_list),
            ("DELETE", "/join-tokens/{id}", self.join_token_rm),
            ("POST", "/tokens", self.token), ("GET", "/tokens", self.token_list),
            ("DELETE", "/tokens/{id}", self.token_rm), ("GET", "/events", self.event_list),
        ]  # fmt: skip

    @web.middleware
    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.state.requests.append((request.method, request.path_qs))
        given = request.headers.get("Authorization", "")
        if request.path != "/api/v1/health" and not given.startswith(f"Bearer {TOKEN}"):
            return problem(401, "unauthenticated", "The token is not known.")
        try:
            return await handler(request)
        except RefusedError as refused:
            return refused.response

    # --- fleet ---

    async def health(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"status": "ok"})

    def server(self) -> dict[str, Any]:
        return {
            "version": "0.1.0",
            "cluster_id": "c-test",
            "started_unix_s": time.time() - 90,
            "ca_pin": "sha256:" + "0" * 64,
            "node_url": "https://127.0.0.1:46581",
        }

    async def info(self, _: web.Request) -> web.StreamResponse:
        return web.json_response(self.server())

    async def status(self, _: web.Request) -> web.StreamResponse:
        states: dict[str, int] = {}
        for job in self.state.jobs.values():
            states[job.body["state"]] = states.get(job.body["state"], 0) + 1
        return web.json_response(
            {
                "server": self.server(), "nodes": [NODE], "clusters": list(self.state.clusters.values()),
                "jobs": states, "sandboxes": {"running": len(self.state.sandboxes), "parked": 8},
            }
        )  # fmt: skip

    async def nodes(self, _: web.Request) -> web.StreamResponse:
        return page([NODE])

    async def node(self, request: web.Request) -> web.StreamResponse:
        if request.match_info["id"] not in (NODE["id"], NODE["name"]):
            raise RefusedError(404, "not_found", f"There is no node {request.match_info['id']}.", "kernpool node ls")
        return web.json_response(NODE)

    async def node_rm(self, request: web.Request) -> web.StreamResponse:
        await self.node(request)
        await self.state.event("remove", f"node/{NODE['id']}")
        return web.Response(status=204)

    async def cluster_list(self, _: web.Request) -> web.StreamResponse:
        return page(list(self.state.clusters.values()))

    async def cluster(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["id"]
        if name not in self.state.clusters:
            raise RefusedError(404, "not_found", f"There is no cluster {name}.", "kernpool status")
        jobs = [job for job in self.state.jobs.values() if job.body["cluster"] == name and not job.ended]
        return web.json_response(self.state.clusters[name] | {"jobs_running": len(jobs)})

    async def down(self, request: web.Request) -> web.StreamResponse:
        await self.cluster(request)
        name = request.match_info["id"]
        for job in self.state.jobs.values():
            if job.body["cluster"] == name and not job.ended:
                await self.end(job)
        del self.state.clusters[name]
        return web.Response(status=204)

    # --- jobs ---

    async def submit(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        key = body.get("idempotency_key")
        if key in self.state.keys:
            return web.json_response(self.state.keys[key].body, status=201)
        task, cluster = body["task"], body["cluster"]
        if unknown := [name for name in task if name not in TASK_KEYS]:
            details = [{"line": 0, "column": 0, "key": unknown[0], "message": "unknown key"}]
            raise RefusedError(400, "invalid", f"`{unknown[0]}`: unknown key.", "", details)
        if cluster and cluster not in self.state.clusters:
            if body["must_exist"]:
                raise RefusedError(404, "not_found", f"There is no cluster {cluster}.", "kernpool status")
            self.state.clusters[cluster] = {
                "name": cluster, "workspace": "default", "owner": "me", "state": "up", "nodes": [NODE["id"]],
                "num_nodes": 1, "resources": {"cpus": 1}, "created_unix_s": time.time(),
            }  # fmt: skip
        job = RunningJob(job_body(f"j-{len(self.state.jobs) + 1}", task, cluster))
        self.state.jobs[job.body["id"]] = self.state.keys[key] = job
        if float(str((task.get("resources") or {}).get("cpus", 0)).rstrip("+")) <= 100:
            self.spawn(self.run(job, task))
        await self.state.event("submit", f"job/{job.body['id']}")
        if self.state.should_cut("/api/v1/jobs"):
            assert request.transport is not None
            request.transport.abort()
        return web.json_response(job.body, status=201)

    def spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self.state.tasks.add(task)
        task.add_done_callback(self.state.tasks.discard)

    async def run(self, job: RunningJob, task: dict[str, Any]) -> None:
        env = {"PATH": "/usr/bin:/bin", "KP_NODE_RANK": "0", "KP_NUM_NODES": "1", "KP_JOB_ID": job.body["id"]}
        env |= {**(task.get("envs") or {}), **(task.get("secrets") or {})}
        job.process = await asyncio.create_subprocess_exec(
            "bash", "-c", task.get("run") or "true", env=env, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        await self.update(job, state="running", detail="", started_unix_s=time.time())
        assert job.process.stdout is not None
        while data := await job.process.stdout.read(65536):
            job.log += data
            async with job.changed:
                job.changed.notify_all()
        code = await job.process.wait()
        if not job.ended:
            code = 128 - code if code < 0 else code
            await self.update(
                job, state="failed" if code else "succeeded", reason="exited", exit_code=code,
                detail=f"exited with {code}", ended_unix_s=time.time(),
            )  # fmt: skip

    async def update(self, job: RunningJob, **changes: Any) -> None:
        job.body |= changes
        async with job.changed:
            job.changed.notify_all()

    def find(self, request: web.Request) -> RunningJob:
        name = request.match_info["id"]
        if name not in self.state.jobs:
            raise RefusedError(404, "not_found", f"There is no job {name}.", "kernpool queue")
        return self.state.jobs[name]

    async def job_list(self, request: web.Request) -> web.StreamResponse:
        bodies = [job.body for job in reversed(self.state.jobs.values())]
        if cluster := request.query.get("cluster"):
            bodies = [body for body in bodies if body["cluster"] == cluster]
        if states := request.query.getall("state", []):
            bodies = [body for body in bodies if body["state"] in states]
        start = int(request.query.get("after", 0))
        size = int(request.query.get("limit", 50))
        following = str(start + size) if len(bodies) > start + size else ""
        return page(bodies[start : start + size], following)

    async def job(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(self.find(request).body)

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        job = self.find(request)
        if not job.ended:
            await self.end(job)
        return web.json_response(job.body)

    async def end(self, job: RunningJob) -> None:
        await self.update(
            job, state="cancelled", reason="cancelled", exit_code=None, detail="cancelled", ended_unix_s=time.time()
        )
        if job.process is not None and job.process.returncode is None:
            job.process.send_signal(signal.SIGKILL)

    async def wait(self, request: web.Request) -> web.StreamResponse:
        job = self.find(request)
        try:
            async with asyncio.timeout(float(request.query["timeout_s"])), job.changed:
                await job.changed.wait_for(lambda: job.ended)
        except TimeoutError:
            pass
        return web.json_response(job.body)

    async def job_logs(self, request: web.Request) -> web.StreamResponse:
        job = self.find(request)
        follow = request.query.get("follow") == "1"
        offset = max(int(request.query.get("offset", 0)), job.log_start)
        if "tail" in request.query:
            lines = bytes(job.log).splitlines(keepends=True)
            kept = int(request.query["tail"])
            offset = max(offset, len(job.log) - sum(map(len, lines[len(lines) - kept :] if kept else [])))
        read_fence = int(request.query.get("fence", 0))
        if read_fence:
            async with job.changed:
                await job.changed.wait_for(lambda: job.ended or job.fence > read_fence)
            if job.fence <= read_fence:
                return web.Response(headers={"KP-Log-Offset": "0", "KP-Log-Fence": str(job.fence)})
        headers = {"KP-Log-Offset": str(offset), "KP-Log-Fence": str(job.fence)}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        while True:
            ended = job.ended
            if data := bytes(job.log[offset:]):
                if self.state.should_cut(request.path):
                    await response.write(data[: len(data) // 2])
                    assert request.transport is not None
                    request.transport.abort()
                    return response
                await response.write(data)
                offset += len(data)
            elif ended or not follow:
                break
            else:
                async with job.changed:
                    await job.changed.wait_for(lambda: len(job.log) > offset or job.ended)  # noqa: B023
        await response.write_eof()
        return response

    async def give_access(self, _: web.Request) -> web.StreamResponse:
        if self.state.access is None:
            raise RefusedError(409, "conflict", "The node has no listener of its own.")
        return web.json_response(self.state.access)

    # --- sandboxes ---

    async def create(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        key = body.get("idempotency_key")
        if body["template"]["image"] not in ("host", "/rootfs"):
            raise RefusedError(400, "invalid", f"There is no image {body['template']['image']}.", "Use --image host")
        ids = self.state.keys.setdefault(key, [new_sandbox_id() for _ in range(body["count"])])
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        for number, sandbox_id in enumerate(ids):
            if number == len(ids) // 2 and self.state.should_cut("/api/v1/sandboxes"):
                assert request.transport is not None
                request.transport.abort()
                return response
            await response.write(ndjson(await self.make(sandbox_id, body)))
        await response.write(ndjson({"done": True, "created": len(ids), "failed": 0}))
        await response.write_eof()
        return response

    async def make(self, sandbox_id: str, body: dict[str, Any]) -> dict[str, Any]:
        if body["env"].get("BREAK") == "1":
            error = {"code": "no_capacity", "message": "No node has room.", "hint": "kernpool node ls", "details": []}
            return {"id": sandbox_id, "error": error}
        self.state.sandboxes.setdefault(
            sandbox_id,
            {
                "id": sandbox_id, "node": NODE["id"], "state": "running", "template": body["template"], "parked": True,
                "labels": body["labels"], "created_unix_s": time.time(), "expires_unix_s": time.time() + body["ttl_s"],
                "env": body["env"],
            },
        )  # fmt: skip
        shown = self.shown(sandbox_id)
        for name in ("", "tmp", "root"):
            (self.state.root / sandbox_id / name).mkdir(exist_ok=True)
        item = {"id": sandbox_id, "sandbox": shown, "ready_ms": 0.7}
        if command := body.get("command"):
            item["result"] = await self.execute(sandbox_id, command)
        if body["remove_after"]:
            self.drop(sandbox_id)
        return item

    def shown(self, sandbox_id: str) -> dict[str, Any]:
        return {key: value for key, value in self.state.sandboxes[sandbox_id].items() if key != "env"}

    def drop(self, sandbox_id: str) -> None:
        self.state.sandboxes.pop(sandbox_id, None)
        shutil.rmtree(self.state.root / sandbox_id, ignore_errors=True)

    async def process(self, sandbox_id: str, command: dict[str, Any]) -> asyncio.subprocess.Process:
        directory = self.state.directory(sandbox_id)
        env = {"PATH": "/usr/bin:/bin", "HOME": "/"} | self.state.sandboxes[sandbox_id]["env"] | command.get("env", {})
        process = await asyncio.create_subprocess_exec(
            *command["argv"], cwd=directory, env=env, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self.state.processes.append(process)
        return process

    async def execute(self, sandbox_id: str, command: dict[str, Any]) -> dict[str, Any]:
        try:
            process = await self.process(sandbox_id, command)
        except OSError as error:
            return {"reason": "start_failed", "exit_code": 127, "detail": str(error)}
        reason, limit = "exited", command.get("timeout_s") or None
        try:
            async with asyncio.timeout(limit):
                out, err = await process.communicate(base64.b64decode(command.get("stdin_b64", "")))
        except TimeoutError:
            reason, out, err = "timeout", b"", b""
            process.kill()
        code = await process.wait()
        kept = command.get("output_bytes_max") or 1 << 20
        return {
            "reason": reason, "exit_code": 128 - code if code < 0 else code,
            "stdout_b64": base64.b64encode(out[:kept]).decode(), "stderr_b64": base64.b64encode(err[:kept]).decode(),
            "stdout_bytes_dropped": max(0, len(out) - kept), "stderr_bytes_dropped": max(0, len(err) - kept),
            "first_output_ms": 1.5,
        }  # fmt: skip

    async def sandbox_list(self, request: web.Request) -> web.StreamResponse:
        wanted = dict(pair.split("=", 1) for pair in request.query.getall("label", []))
        shown = map(self.shown, self.state.sandboxes)
        return page([body for body in shown if wanted.items() <= body["labels"].items()])

    async def sandbox(self, request: web.Request) -> web.StreamResponse:
        self.state.directory(request.match_info["id"])
        return web.json_response(self.shown(request.match_info["id"]))

    async def extend(self, request: web.Request) -> web.StreamResponse:
        self.state.directory(request.match_info["id"])
        entry = self.state.sandboxes[request.match_info["id"]]
        entry["expires_unix_s"] = time.time() + (await request.json())["ttl_s"]
        return web.json_response(self.shown(request.match_info["id"]))

    async def remove(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        ids = body["ids"] or [
            sandbox_id
            for sandbox_id, entry in self.state.sandboxes.items()
            if body["all"] or (body["labels"] and body["labels"].items() <= entry["labels"].items())
        ]
        known = [sandbox_id for sandbox_id in ids if sandbox_id in self.state.sandboxes]
        for sandbox_id in known:
            self.drop(sandbox_id)
        return web.json_response({"removed": known, "unreachable": []})

    async def exec_stream(self, request: web.Request) -> web.StreamResponse:
        command = await request.json()
        sandbox_id = request.match_info["id"]
        try:
            process = await self.process(sandbox_id, command)
        except OSError as error:
            raise RefusedError(400, "start_failed", f"{command['argv'][0]}: {error.strerror}.") from error
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        assert process.stdin is not None
        process.stdin.write(base64.b64decode(command.get("stdin_b64", "")))
        process.stdin.close()

        async def pump(name: str, reader: asyncio.StreamReader | None) -> None:
            assert reader is not None
            while data := await reader.read(65536):
                await response.write(ndjson({"stream": name, "data_b64": base64.b64encode(data).decode()}))

        await asyncio.gather(pump("stdout", process.stdout), pump("stderr", process.stderr))
        if self.state.should_cut(request.path):
            assert request.transport is not None
            request.transport.abort()
            return response
        code = await process.wait()
        await response.write(ndjson({"exit": {"reason": "exited", "exit_code": 128 - code if code < 0 else code}}))
        await response.write_eof()
        return response

    async def exec_socket(self, request: web.Request) -> web.StreamResponse:
        self.state.directory(request.match_info["id"])
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        command = json.loads(await socket.receive_str())
        process = await self.process(request.match_info["id"], command)
        assert process.stdin is not None
        stdin = process.stdin

        async def inward() -> None:
            async for message in socket:
                if message.type is WSMsgType.TEXT:
                    process.send_signal(json.loads(message.data)["signal"])
                elif len(message.data) > 1:
                    stdin.write(message.data[1:])
                    await stdin.drain()
                else:
                    stdin.close()

        async def pump(channel: int, reader: asyncio.StreamReader | None) -> None:
            assert reader is not None
            while data := await reader.read(65536):
                await socket.send_bytes(bytes([channel]) + data)

        task = asyncio.ensure_future(inward())
        await asyncio.gather(pump(1, process.stdout), pump(2, process.stderr))
        code = await process.wait()
        await socket.send_json({"exit": {"reason": "exited", "exit_code": 128 - code if code < 0 else code}})
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await socket.close()
        return socket

    async def port(self, request: web.Request) -> web.StreamResponse:
        self.state.directory(request.match_info["id"])
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(request.match_info["port"]))
        except OSError:
            raise RefusedError(502, "unreachable", f"Nothing listens on port {request.match_info['port']}.") from None
        socket = web.WebSocketResponse()
        await socket.prepare(request)

        async def inward() -> None:
            async for message in socket:
                if not message.data:
                    writer.write_eof()
                    return
                writer.write(message.data)

        task = asyncio.ensure_future(inward())
        while data := await reader.read(65536):
            await socket.send_bytes(data)
        await socket.send_bytes(b"")
        await task
        writer.close()
        await socket.close()
        return socket

    # --- files ---

    async def read(self, request: web.Request) -> web.StreamResponse:
        path = self.state.inside(request)
        if not path.is_file():
            raise RefusedError(404, "not_found", f"There is no file {request.query['path']}.")
        data = path.read_bytes()[int(request.query.get("offset", 0)) :]
        if "limit" in request.query:
            data = data[: int(request.query["limit"])]
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(data)
        await response.write_eof()
        return response

    async def write(self, request: web.Request) -> web.StreamResponse:
        path = self.state.inside(request)
        if not path.parent.is_dir():
            raise RefusedError(404, "not_found", f"There is no directory {Path(request.query['path']).parent}.")
        path.write_bytes(await request.read())
        path.chmod(int(request.query.get("mode", "644"), 8))
        return web.Response(status=204)

    async def unlink(self, request: web.Request) -> web.StreamResponse:
        path = self.state.inside(request)
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        return web.Response(status=204)

    async def mkdir(self, request: web.Request) -> web.StreamResponse:
        self.state.inside(request).mkdir(parents=True, exist_ok=True)
        return web.Response(status=204)

    async def move(self, request: web.Request) -> web.StreamResponse:
        self.state.inside(request).replace(self.state.inside(request, "to"))
        return web.Response(status=204)

    async def listdir(self, request: web.Request) -> web.StreamResponse:
        path = self.state.inside(request)
        if not path.is_dir():
            raise RefusedError(404, "not_found", f"There is no directory {request.query['path']}.")
        return web.json_response({"entries": [entry(item) for item in sorted(path.iterdir())]})

    async def stat(self, request: web.Request) -> web.StreamResponse:
        path = self.state.inside(request)
        if not path.exists():
            raise RefusedError(404, "not_found", f"There is no file {request.query['path']}.")
        return web.json_response(entry(path))

    # --- pools, tokens, events ---

    async def get_pools(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"pools": self.state.pools})

    async def put_pools(self, request: web.Request) -> web.StreamResponse:
        self.state.pools = (await request.json())["pools"]
        return await self.get_pools(request)

    async def join_token(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        token_id = secrets.token_hex(4)
        shown = {
            "id": token_id, "pool": body["pool"], "uses_left": body["uses"],
            "expires_unix_s": time.time() + body["expires_s"],
        }  # fmt: skip
        self.state.join_tokens[token_id] = shown
        return web.json_response(shown | {"token": f"kpj1.{'0' * 64}.{token_id}.secret"}, status=201)

    async def join_token_list(self, _: web.Request) -> web.StreamResponse:
        return page(list(self.state.join_tokens.values()))

    async def join_token_rm(self, request: web.Request) -> web.StreamResponse:
        if self.state.join_tokens.pop(request.match_info["id"], None) is None:
            raise RefusedError(404, "not_found", f"There is no join token {request.match_info['id']}.")
        return web.Response(status=204)

    async def token(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        shown = {**body, "id": secrets.token_hex(4), "created_unix_s": time.time()}
        self.state.tokens[shown["id"]] = shown
        return web.json_response(shown | {"token": "kpt_secret"}, status=201)

    async def token_list(self, _: web.Request) -> web.StreamResponse:
        return page(list(self.state.tokens.values()))

    async def token_rm(self, request: web.Request) -> web.StreamResponse:
        if self.state.tokens.pop(request.match_info["id"], None) is None:
            raise RefusedError(404, "not_found", f"There is no token {request.match_info['id']}.")
        return web.Response(status=204)

    async def event_list(self, request: web.Request) -> web.StreamResponse:
        after = int(request.query.get("after", 0))
        if request.query.get("follow") != "1":
            return page(
                self.state.events[after : after + 2], str(after + 2) if len(self.state.events) > after + 2 else ""
            )
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        while True:
            for item in self.state.events[after:]:
                await response.write(ndjson(item))
                after = item["id"]
            async with self.state.event_added:
                await self.state.event_added.wait_for(lambda: len(self.state.events) > after)  # noqa: B023


TASK_KEYS = {"name", "run", "setup", "envs", "secrets", "resources", "num_nodes"}


def page(items: list[Any], following: str = "") -> web.Response:
    """Make a page of a listing."""
    return web.json_response({"items": items, "next": following})


def ndjson(item: Any) -> bytes:
    """Make one line."""
    return json.dumps(item).encode() + b"\n"


def new_sandbox_id() -> str:
    """Mint an id."""
    return "sb-" + "".join(secrets.choice("abcdefghijklmnopqrstuvwxyz234567") for _ in range(16))


def entry(path: Path) -> dict[str, Any]:
    """Describe a file."""
    found = path.lstat()
    kind = "symlink" if path.is_symlink() else "dir" if path.is_dir() else "file"
    return {
        "name": path.name, "type": kind, "size": found.st_size, "mode": stat.S_IMODE(found.st_mode),
        "mtime_ns": found.st_mtime_ns, "uid": found.st_uid, "gid": found.st_gid, "link": "",
    }  # fmt: skip


def job_body(job_id: str, task: dict[str, Any], cluster: str | None) -> dict[str, Any]:
    """Make a new job."""
    return {
        "id": job_id, "name": task.get("name") or "job", "cluster": cluster, "state": "pending", "reason": None,
        "exit_code": None, "detail": "no node has that many CPUs free", "num_nodes": 1, "attempts": [], "restarts": 0,
        "workspace": "default", "owner": "me", "resources": {"cpus": 1}, "created_unix_s": time.time(),
        "started_unix_s": None, "ended_unix_s": None,
    }  # fmt: skip


class ContractServer:
    """Runs the API in a thread of its own; `state` may be changed between requests."""

    def __init__(self, root: Path, ssl_context: Any = None) -> None:
        self.root = root
        self.url = ""
        self.state: State
        self._ssl = ssl_context
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._stop: asyncio.Event
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "ContractServer":
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)

    def call(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run something on the server's own loop."""

        async def run() -> None:
            await function()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self.state = State(self.root)
        self._stop = asyncio.Event()
        runner = web.AppRunner(Api(self.state).app(), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self._ssl)
        await site.start()
        port = runner.addresses[0][1]
        self.url = f"{'https' if self._ssl else 'http'}://127.0.0.1:{port}"
        self._started.set()
        await self._stop.wait()
        started = [*self.state.processes, *(job.process for job in self.state.jobs.values() if job.process)]
        for process in started:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        await runner.cleanup()
        for task in list(self.state.tasks):
            task.cancel()
        await asyncio.gather(*self.state.tasks, return_exceptions=True)
