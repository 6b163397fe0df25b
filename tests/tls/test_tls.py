"""Handshakes over loopback: who gets in, who is refused, and that nothing comes from the environment."""

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiohttp import ClientError, ClientSession, TCPConnector, web
from cryptography.hazmat.primitives.serialization import Encoding

from kernpool_tls.authority import Authority
from kernpool_tls.contexts import (
    api_listener_context,
    client_context,
    data_plane_listener_context,
    node_listener_context,
    reload_certificate,
)
from kernpool_tls.errors import (
    FirstContactError,
    IdentityError,
    IdentityFileError,
    NoCertificateError,
    PinMismatchError,
    RevokedError,
    WrongRoleError,
)
from kernpool_tls.firstcontact import fetch_authority
from kernpool_tls.names import COORDINATOR_DNS_NAME, Role, node_dns_name, parse_uri
from kernpool_tls.peer import PeerIdentity, Revocations, parse_peer, peer_identity, require_peer

if TYPE_CHECKING:
    from tests.tls.conftest import Enrol, NodeFiles

NODE_ID = "n-abcdefghijkl"


@asynccontextmanager
async def listener(
    server_file: Path, authority: Authority, role: Role = Role.NODE, revocations: Revocations | None = None
) -> AsyncIterator[int]:
    """A node listener as the coordinator has it: /open for all, /link for verified nodes; gives its port."""

    async def link(request: web.Request) -> web.Response:
        try:
            peer = require_peer(request, cluster_id="kp-test", role=role, revocations=revocations or Revocations())
        except IdentityError as error:
            return web.json_response({"code": error.code, "message": str(error)}, status=403)
        return web.json_response({"node_id": peer.node_id})

    async def open_to_all(_request: web.Request) -> web.Response:
        return web.Response(text="open")

    app = web.Application()
    app.add_routes([web.get("/link", link), web.get("/open", open_to_all)])
    runner = web.AppRunner(app)
    await runner.setup()
    context = node_listener_context(server_file, authority.certificate_pem)
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def get(port: int, path: str, context: ssl.SSLContext, name: str = COORDINATOR_DNS_NAME) -> str:
    async with ClientSession(connector=TCPConnector(force_close=True)) as session:
        url = f"https://127.0.0.1:{port}{path}"
        async with session.get(url, ssl=context, server_hostname=name) as response:
            return await response.text()


async def test_a_node_with_its_certificate_is_known_by_its_id(
    server_file: Path, authority: Authority, node: "NodeFiles"
) -> None:
    """The ordinary link."""
    async with listener(server_file, authority) as port:
        context = client_context(authority.certificate_pem, node.path)
        assert await get(port, "/link", context) == f'{{"node_id": "{NODE_ID}"}}'


async def test_without_a_certificate_only_the_open_endpoints_answer(server_file: Path, authority: Authority) -> None:
    """A node that is not enrolled yet may enrol, and nothing else."""
    async with listener(server_file, authority) as port:
        context = client_context(authority.certificate_pem)
        assert await get(port, "/open", context) == "open"
        assert NoCertificateError.code in await get(port, "/link", context)


async def test_a_coordinator_certificate_is_no_node(server_file: Path, authority: Authority) -> None:
    """The roles of one authority must not be exchanged."""
    async with listener(server_file, authority) as port:
        answer = await get(port, "/link", client_context(authority.certificate_pem, server_file))
        assert WrongRoleError.code in answer
        assert "a node of cluster kp-test is needed" in answer


async def test_a_node_certificate_is_no_coordinator(server_file: Path, authority: Authority, node: "NodeFiles") -> None:
    """A node calls what only coordinators may call."""
    async with listener(server_file, authority, role=Role.COORDINATOR) as port:
        assert WrongRoleError.code in await get(port, "/link", client_context(authority.certificate_pem, node.path))


async def test_a_removed_node_is_refused_at_once(server_file: Path, authority: Authority, node: "NodeFiles") -> None:
    """`kernpool node rm` was typed a moment ago; the node's certificate is good for another 20 hours."""
    revocations = Revocations()
    async with listener(server_file, authority, revocations=revocations) as port:
        context = client_context(authority.certificate_pem, node.path)
        assert NODE_ID in await get(port, "/link", context)
        revocations.revoke_node(NODE_ID)
        assert RevokedError.code in await get(port, "/link", context)


async def test_an_expired_certificate_does_not_get_through_the_handshake(
    server_file: Path, authority: Authority, enrol: "Enrol", tmp_path: Path
) -> None:
    """A node that was off for a weekend links: it has to renew first."""
    old = enrol(authority, tmp_path, now_unix_s=time.time() - 2 * 86400)
    async with listener(server_file, authority) as port:
        with pytest.raises((OSError, ClientError)):
            await get(port, "/link", client_context(authority.certificate_pem, old.path))


async def test_a_certificate_of_another_authority_does_not_get_through_the_handshake(
    server_file: Path, authority: Authority, foreign_authority: Authority, enrol: "Enrol", tmp_path: Path
) -> None:
    """A node of another cluster with the same names links."""
    stranger = enrol(foreign_authority, tmp_path)
    async with listener(server_file, authority) as port:
        with pytest.raises((OSError, ClientError)):
            await get(port, "/link", client_context(authority.certificate_pem, stranger.path))


async def test_tls_1_2_is_refused(server_file: Path, authority: Authority) -> None:
    """An old client, or somebody who downgrades."""
    old = client_context(authority.certificate_pem)
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
    async with listener(server_file, authority) as port:
        await connect(port, client_context(authority.certificate_pem), COORDINATOR_DNS_NAME)
        with pytest.raises(OSError):
            await connect(port, old, COORDINATOR_DNS_NAME)


async def test_a_client_never_speaks_tls_1_2_to_a_server(server_file: Path, authority: Authority) -> None:
    """The other direction of the downgrade."""
    context = api_listener_context(server_file)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    with plain_server(context) as port, pytest.raises(OSError, match=r"(?i)protocol version"):
        await connect(port, client_context(authority.certificate_pem), COORDINATOR_DNS_NAME)


async def test_a_server_with_another_name_is_refused(
    server_file: Path, authority: Authority, node: "NodeFiles"
) -> None:
    """A node of the same cluster stands at the coordinator's address: its certificate is genuine, its name is not."""
    with plain_server(data_plane_listener_context(node.path)) as port:
        with pytest.raises(ssl.SSLCertVerificationError):
            await connect(port, client_context(authority.certificate_pem), COORDINATOR_DNS_NAME)
        with pytest.raises(ssl.SSLCertVerificationError):
            await connect(port, client_context(authority.certificate_pem), node_dns_name("n-zzzzzzzzzzzz"))
        await connect(port, client_context(authority.certificate_pem), node_dns_name(NODE_ID))


async def test_the_environment_changes_no_trust(
    server_file: Path,
    authority: Authority,
    foreign_authority: Authority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SSL_CERT_FILE is set for other programs of the machine: it must neither add nor remove an authority of ours."""
    (tmp_path / "ours.pem").write_bytes(authority.certificate_pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ours.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    with plain_server(api_listener_context(server_file)) as port:
        with pytest.raises(ssl.SSLCertVerificationError):
            await connect(port, client_context(foreign_authority.certificate_pem), COORDINATOR_DNS_NAME)
        monkeypatch.setenv("SSL_CERT_FILE", "/nonexistent")
        await connect(port, client_context(authority.certificate_pem), COORDINATOR_DNS_NAME)


async def test_the_first_contact_learns_the_pinned_authority(server_file: Path, authority: Authority) -> None:
    """A fresh machine with nothing but a join token."""
    with plain_server(api_listener_context(server_file)) as port:
        pem = await fetch_authority("127.0.0.1", port, authority.pin)
        assert pem.strip() == authority.certificate_pem.decode().strip()
        await connect(port, client_context(pem), COORDINATOR_DNS_NAME)


async def test_the_wrong_pin_ends_the_first_contact(
    server_file: Path, authority: Authority, foreign_authority: Authority
) -> None:
    """Somebody stands in between with an authority of his own: the join token must not be sent to him."""
    refused = pytest.raises(PinMismatchError, match="somebody stands in between")
    with plain_server(api_listener_context(server_file)) as port, refused:
        await fetch_authority("127.0.0.1", port, foreign_authority.pin)


async def test_a_pinned_authority_that_did_not_sign_the_server_helps_nobody(
    server_file: Path, authority: Authority, foreign_authority: Authority, tmp_path: Path
) -> None:
    """The man in between appends the genuine authority (it is public) to his own chain."""
    own_file = tmp_path / "mitm.pem"
    foreign_authority.sign_server("c-1", [], own_file, time.time())
    own_file.write_bytes(own_file.read_bytes() + authority.certificate_pem)
    with plain_server(api_listener_context(own_file)) as port:
        pem = await fetch_authority("127.0.0.1", port, authority.pin)
        with pytest.raises(ssl.SSLCertVerificationError):
            await connect(port, client_context(pem), COORDINATOR_DNS_NAME)


async def test_a_first_contact_with_nobody_is_told_with_its_address(unused_port: int) -> None:
    """The coordinator is down, or the address has a typing error."""
    with pytest.raises(FirstContactError, match=f"127.0.0.1:{unused_port}"):
        await fetch_authority("127.0.0.1", unused_port, "sha256:00")


async def test_a_silent_server_ends_the_first_contact_in_time() -> None:
    """Something listens there that is no TLS server."""
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(FirstContactError, match="did not answer"):
        await fetch_authority("127.0.0.1", silent.getsockname()[1], "sha256:00", timeout_s=0.2)


async def test_a_renewed_certificate_is_shown_without_a_new_context(
    authority: Authority, enrol: "Enrol", tmp_path: Path
) -> None:
    """The agent's listener lives for months; its certificate for a day."""
    first = enrol(authority, tmp_path)
    context = data_plane_listener_context(first.path)
    second = enrol(authority, tmp_path)
    reload_certificate(context, second.path)
    with plain_server(context) as port:
        shown = await connect(port, client_context(authority.certificate_pem), node_dns_name(NODE_ID))
        assert shown is not None
        assert shown.serial == second.issued.serial


def test_an_identity_file_without_its_key_is_told_by_name(tmp_path: Path, authority: Authority) -> None:
    """A half-restored backup."""
    (tmp_path / "half.pem").write_bytes(authority.certificate_pem)
    with pytest.raises(IdentityFileError, match=r"half\.pem"):
        client_context(authority.certificate_pem, tmp_path / "half.pem")


def test_certificates_that_name_no_role_are_refused(authority: Authority) -> None:
    """Rubbish, and a certificate without our URI."""
    with pytest.raises(WrongRoleError):
        parse_peer(b"rubbish")


@pytest.mark.parametrize(
    "uri",
    [
        "", "spiffe://kp-test", "spiffe://kp-test/node/", "spiffe://kp-test/admin/x", "spiffe://kp-test/node/x/../y",
        "https://kp-test/node/x", "spiffe://kp-test/node/x\n", "spiffe://KP/node/x", "spiffe://kp-test/node/x?y",
    ],
)  # fmt: skip
def test_only_our_exact_uris_are_names(uri: str) -> None:
    """A URI that is almost ours must not become a name."""
    assert parse_uri(uri) is None


@contextmanager
def plain_server(context: ssl.SSLContext) -> Iterator[int]:
    """A TLS server on a thread that answers every connection with silence; gives its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        stop = threading.Event()
        thread = threading.Thread(target=_serve, args=(server, context, stop.is_set))
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            stop.set()
            with socket.create_connection(server.getsockname()):
                pass
            thread.join()


def _serve(server: socket.socket, context: ssl.SSLContext, stopped: Callable[[], bool]) -> None:
    while not stopped():
        connection, _address = server.accept()
        connection.settimeout(5)
        try:
            with context.wrap_socket(connection, server_side=True) as tls:
                tls.recv(1)
        except OSError:
            connection.close()


async def connect(port: int, context: ssl.SSLContext, name: str) -> PeerIdentity | None:
    """Who answers at this port, as the client's TLS layer verified it."""
    _reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
    peer = peer_identity(writer.get_extra_info("ssl_object"))
    writer.close()
    await writer.wait_closed()
    return peer


@pytest.fixture
def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def test_the_authority_is_in_the_chain_that_servers_show(server_file: Path, authority: Authority) -> None:
    """First contacts look for it there."""
    assert server_file.read_bytes().endswith(authority.certificate_pem)
    assert authority._certificate.public_bytes(Encoding.PEM) == authority.certificate_pem
