"""Who is let in: tokens and grants at both doors, before anything is touched."""

from typing import TYPE_CHECKING

import aiohttp
import pytest

from kernpool_mesh import datatoken
from kernpool_tls.names import node_dns_name

if TYPE_CHECKING:
    from tests.agent.dataplane.conftest import DirectDoor, Door, LinkDoor, Node

pytestmark = pytest.mark.asyncio(loop_scope="package")

ALL = ["exec", "read", "write", "connect", "logs", "metrics"]
REQUESTS = [
    ("POST", "/v1/sandboxes/{}/exec", "sandbox", "exec"),
    ("GET", "/v1/sandboxes/{}/exec", "sandbox", "exec"),
    ("GET", "/v1/sandboxes/{}/files?path=/", "sandbox", "read"),
    ("GET", "/v1/sandboxes/{}/files/list?path=/", "sandbox", "read"),
    ("GET", "/v1/sandboxes/{}/files/stat?path=/", "sandbox", "read"),
    ("PUT", "/v1/sandboxes/{}/files?path=/x", "sandbox", "write"),
    ("DELETE", "/v1/sandboxes/{}/files?path=/x", "sandbox", "write"),
    ("POST", "/v1/sandboxes/{}/files/mkdir?path=/x", "sandbox", "write"),
    ("POST", "/v1/sandboxes/{}/files/move?path=/x&to=/y", "sandbox", "write"),
    ("GET", "/v1/sandboxes/{}/ports/80", "sandbox", "connect"),
    ("GET", "/v1/jobs/{}/0/logs", "job", "logs"),
]


async def problem(response: aiohttp.ClientResponse) -> tuple[int, str, str]:
    """Reads an error answer as (status, code, message)."""
    assert response.content_type == "application/problem+json"
    body = await response.json(content_type=None)
    assert set(body) == {"code", "message", "hint"}
    return response.status, body["code"], body["message"]


@pytest.mark.parametrize(("method", "path", "kind", "verb"), REQUESTS)
async def test_each_request_needs_its_verb(door: "Door", method: str, path: str, kind: str, verb: str) -> None:
    """A token for reading logs must not run commands."""
    others = [other for other in ALL if other != verb]
    async with door.request(method, path.format("sb-1"), f"{kind}/sb-1", others) as response:
        assert await problem(response) == (403, "forbidden", f"the grant does not allow {verb} on {kind}/sb-1")


@pytest.mark.parametrize(("method", "path", "kind", "verb"), REQUESTS)
async def test_a_grant_is_for_its_object_alone(door: "Door", method: str, path: str, kind: str, verb: str) -> None:
    """The token of one sandbox is used on another, or on a job of the same id."""
    other = "job" if kind == "sandbox" else "sandbox"
    for object_ in (f"{kind}/sb-2", f"{other}/sb-1", kind, f"{kind}/", f"{kind}/sb-1/", f"{kind}/*", "*"):
        async with door.request(method, path.format("sb-1"), object_, [verb]) as response:
            status, code, message = await problem(response)
            assert (status, code) == (403, "forbidden")
            assert f"the request is for {kind}/sb-1" in message


async def test_an_unknown_address_and_method_are_told(door: "Door") -> None:
    """A client of another version."""
    for method, path in (("GET", "/v2/x"), ("GET", "/"), ("PATCH", "/v1/sandboxes/sb-1/exec")):
        async with door.request(method, path, "sandbox/sb-1", ALL) as response:
            status, code, message = await problem(response)
            assert (status, code) == (404, "not_found")
            assert f"{method} {path} is no address" in message


async def test_an_unknown_sandbox_and_job_are_told(door: "Door") -> None:
    """It ended yesterday, or never was."""
    async with door.request("POST", "/v1/sandboxes/sb-404/exec", "sandbox/sb-404", ALL, json={"argv": ["true"]}) as r:
        assert (await problem(r))[:2] == (404, "not_found")
    async with door.request("GET", "/v1/jobs/j-404/0/logs", "job/j-404", ALL) as r:
        assert (await problem(r))[:2] == (404, "not_found")


@pytest.mark.parametrize(
    ("header", "told"),
    [
        ("", "no data token"),
        ("Basic abc", "no data token"),
        ("Bearer ", "no data token"),
        ("Bearer x", "malformed_token"),
        ("Bearer kpt_apitoken", "malformed_token"),
        ("Bearer kpd1.e30.e30", "bad_signature"),
        ("Bearer kpd1." + "A" * 4000, "malformed_token"),
    ],
)
async def test_a_direct_request_without_a_genuine_token_is_nobody(direct: "DirectDoor", header: str, told: str) -> None:
    """Whoever finds the port open."""
    headers = {"Authorization": header} if header else {"Authorization": "x"}
    async with direct.request("GET", "/v1/jobs/j-1/0/logs", "job/j-1", ["logs"], headers=headers) as response:
        status, code, message = await problem(response)
        assert (status, code) == (401, "unauthenticated")
        assert told in message
        assert response.headers["WWW-Authenticate"] == "Bearer"
        assert header[7:] not in message or not header[7:].strip()


async def test_tokens_that_are_expired_foreign_or_of_an_old_key_are_refused(direct: "DirectDoor", node: "Node") -> None:
    """A leaked token is worth minutes, on one node."""
    now = int(node.now_unix_s)
    good = {"node_id": "n-abcdefghijkl", "object": "job/j-1", "verbs": ("logs",), "exp_unix_s": now + 60, "actor": "a"}

    def sign(key: bytes = b"k" * 32, key_id: int = 3, **changes: object) -> str:
        return datatoken.sign(key, key_id, datatoken.Claims(**{**good, **changes}), now)  # type: ignore[arg-type]

    refused = {
        "expired_token": sign(exp_unix_s=now - 1),
        "wrong_node": sign(node_id="n-other0000000"),
        "bad_signature": sign(key=b"o" * 32),
    }
    for told, token in {**refused, "bad_signature ": sign(key_id=4)}.items():
        headers = {"Authorization": f"Bearer {token}"}
        async with direct.request("GET", "/v1/jobs/j-1/0/logs", "job/j-1", ["logs"], headers=headers) as response:
            status, _code, message = await problem(response)
            assert (status, told.strip() in message) == (401, True)
            assert token not in message
    async with direct.request(
        "GET", "/v1/jobs/j-1/0/logs", "job/j-1", ["logs"], headers={"Authorization": f"Bearer {sign()}"}
    ) as response:
        assert response.status == 404


async def test_a_token_is_judged_by_the_coordinators_time(direct: "DirectDoor", node: "Node") -> None:
    """The node's own clock is wrong by hours; its idea of the coordinator's time counts."""
    token = node.token("job/j-1", ["logs"])
    headers = {"Authorization": f"Bearer {token}"}
    before = node.now_unix_s
    node.now_unix_s += 3600
    try:
        async with direct.request("GET", "/v1/jobs/j-1/0/logs", "job/j-1", ["logs"], headers=headers) as response:
            assert (await problem(response))[0] == 401
    finally:
        node.now_unix_s = before


async def test_a_stream_cannot_bring_a_token_for_more(tunnelled: "LinkDoor", node: "Node") -> None:
    """The stream's own grant counts; a header inside it changes nothing."""
    headers = {"Authorization": f"Bearer {node.token('job/j-1', ['logs'])}"}
    async with tunnelled.request("GET", "/v1/jobs/j-1/0/logs", "job/j-2", ["logs"], headers=headers) as response:
        assert (await problem(response))[0] == 403


async def test_metrics_are_for_the_node_itself_or_a_token(direct: "DirectDoor", tunnelled: "LinkDoor") -> None:
    """Prometheus on the node needs nothing; through the coordinator a grant is needed."""
    async with direct.session.get(
        direct.url("/metrics"), ssl=direct.tls, server_hostname=node_dns_name("n-abcdefghijkl")
    ) as response:
        assert (response.status, await response.text()) == (200, "kp_up 1\n")
    async with tunnelled.request("GET", "/metrics", "node/n-abcdefghijkl", ["metrics"]) as response:
        assert response.status == 200
    for object_, verbs in (("node/n-other", ["metrics"]), ("node/n-abcdefghijkl", ["logs"])):
        async with tunnelled.request("GET", "/metrics", object_, verbs) as response:
            assert (await problem(response))[:2] == (403, "forbidden")
