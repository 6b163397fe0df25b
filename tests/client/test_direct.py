"""Straight to a node: TLS pinned to the coordinator's authority and the node's name, else through the coordinator."""

import datetime
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from contract_server import NODE, ContractServer
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kernpool import aio
from kernpool.protocol.routes import TUNNEL
from kernpool.sdk import Client

NAME = "n-aaaabbbbcccc.node.kernpool.internal"
Issued = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]


def issue(name: str, issuer: Issued | None = None) -> Issued:
    """Make an authority, or a certificate of one."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer[0].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    )
    return builder.sign(issuer[1] if issuer else key, hashes.SHA256()), key


def pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


@pytest.fixture(scope="module")
def authority() -> Issued:
    return issue("test authority")


@pytest.fixture
def node(server: ContractServer, authority: Issued, tmp_path: Path) -> Iterator[ContractServer]:
    """The node's own listener, which serves what the coordinator made."""
    certificate, key = issue(NAME, authority)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (tmp_path / "node.pem").write_bytes(pem(certificate).encode() + private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(tmp_path / "node.pem")
    with ContractServer(server.root, context) as running:
        running.state.sandboxes = server.state.sandboxes
        server.state.access = access(running.url, authority)
        yield running


def access(url: str, authority: Issued, **changes: Any) -> dict[str, Any]:
    given = {"urls": [url], "server_name": NAME, "ca_pem": pem(authority[0]), "token": "kpt_test", "expires_in_s": 300}
    return {**given, **changes}


@pytest.fixture
def client(server: ContractServer) -> Iterator[Client]:
    with Client(server.url, "kpt_test", direct=True) as made:
        yield made


@pytest_asyncio.fixture
async def aclient(server: ContractServer) -> Any:
    async with aio.Client(server.url, "kpt_test", direct=True) as made:
        yield made


def at(server: ContractServer, part: str) -> int:
    """Count the requests that came there."""
    return sum(part in path for _, path in server.state.requests)


def test_commands_and_files_go_straight_to_the_node(
    server: ContractServer, node: ContractServer, client: Client
) -> None:
    with client.sandboxes.create_one() as sandbox:
        assert sandbox.exec("echo hi").stdout == b"hi\n"
        sandbox.files.write("/f", b"x" * 3_000_000)
        assert sandbox.files.read("/f") == b"x" * 3_000_000
        with sandbox.start(["cat"]) as process:
            process.write(b"y" * 1_000_000)
            process.close_stdin()
            assert sum(len(chunk.data) for chunk in process) == 1_000_000
    assert (at(server, "/exec"), at(server, "/files"), at(server, "/access")) == (0, 0, 1)
    assert (at(node, "/exec"), at(node, "/files")) == (2, 2)


async def test_the_asyncio_twin_does_too(server: ContractServer, node: ContractServer, aclient: aio.Client) -> None:
    async with await aclient.sandboxes.create_one() as sandbox:
        assert (await sandbox.exec("echo hi")).stdout == b"hi\n"
        async with await sandbox.start(["cat"]) as process:
            await process.write(b"y")
            await process.close_stdin()
            assert [chunk.data async for chunk in process] == [b"y"]
    assert (at(server, "/exec"), at(node, "/exec")) == (0, 2)


@pytest.mark.parametrize("wrong", ["name", "authority", "port", "nobody"])
def test_a_node_that_cannot_prove_itself_gets_nothing(
    server: ContractServer, node: ContractServer, client: Client, authority: Issued, wrong: str
) -> None:
    """Another machine has taken the node's address: neither token nor command may reach it."""
    wrongs: dict[str, dict[str, Any]] = {
        "name": {"server_name": "n-zzzzzzzzzzzz.node.kernpool.internal"},
        "authority": {"ca_pem": pem(issue("another authority")[0])},
        "port": {"urls": ["https://127.0.0.1:1"]},
        "nobody": {"urls": []},
    }
    server.state.access = access(node.url, authority, **wrongs[wrong])
    with client.sandboxes.create_one() as sandbox:
        assert sandbox.exec("echo hi").stdout == b"hi\n"
        assert sandbox.exec("echo hi").stdout == b"hi\n"
    assert node.state.requests == []
    assert (at(server, "/exec"), at(server, "/access")) == (2, 1), "the node is spared another try"
    assert client.routes.known("sandbox/other", str(NODE["id"])) is TUNNEL


async def test_the_asyncio_twin_falls_back_as_well(
    server: ContractServer, node: ContractServer, aclient: aio.Client, authority: Issued
) -> None:
    server.state.access = access(node.url, authority, ca_pem=pem(issue("another authority")[0]))
    async with await aclient.sandboxes.create_one() as sandbox:
        assert (await sandbox.exec("echo hi")).stdout == b"hi\n"
    assert node.state.requests == []


def test_the_second_url_is_tried_when_the_first_is_dead(
    server: ContractServer, node: ContractServer, client: Client, authority: Issued
) -> None:
    server.state.access = access(node.url, authority, urls=["https://127.0.0.1:1", node.url])
    with client.sandboxes.create_one() as sandbox:
        assert sandbox.exec("echo hi").stdout == b"hi\n"
    assert (at(server, "/exec"), at(node, "/exec")) == (0, 1)


def test_a_token_that_the_node_refuses_is_renewed_once(
    server: ContractServer, node: ContractServer, client: Client, authority: Issued
) -> None:
    """The node's key was rotated after the token was given."""
    with client.sandboxes.create_one() as sandbox:
        answers = iter([access(node.url, authority, token="old"), access(node.url, authority)])
        given = client.run

        def run(call: Any) -> Any:
            if call.path.endswith("/access"):
                server.state.access = next(answers)
            return given(call)

        client.run = run  # type: ignore[method-assign]
        assert sandbox.exec("echo hi").stdout == b"hi\n"
    assert (at(server, "/access"), at(server, "/exec"), at(node, "/exec")) == (2, 0, 2)


def test_a_plain_http_url_or_a_missing_authority_is_refused(
    server: ContractServer, client: Client, authority: Issued
) -> None:
    """Whoever could say `http://` in a node's name would read every command."""
    server.state.access = access("http://127.0.0.1:1", authority)
    with client.sandboxes.create_one() as sandbox, pytest.raises(Exception, match="without the means to check"):
        sandbox.exec("echo hi")
