"""The agent's keys: made by a child process, kept in private files, replaced as a whole."""

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key

import kernpool_tls
from kernpool_tls.authority import Authority
from kernpool_tls.contexts import client_context, data_plane_listener_context
from kernpool_tls.errors import IdentityFileError, InsecureFileError, KeyWorkerError, PinMismatchError, WrongRoleError
from kernpool_tls.identity import Identity, load
from kernpool_tls.keys import NodeKeys
from kernpool_tls.keyworker import answer
from kernpool_tls.peer import Revocations
from kernpool_tls.renewal import check_renewal

if TYPE_CHECKING:
    from tests.tls.conftest import MakeKey

NODE_ID = "n-abcdefghijkl"


@pytest.fixture
def keys(tmp_path: Path) -> NodeKeys:
    return NodeKeys(tmp_path / "identity")


async def enrol(keys: NodeKeys, authority: Authority, now_unix_s: float | None = None) -> Identity:
    csr_pem = await keys.new_request()
    issued = authority.sign_node(csr_pem, NODE_ID, time.time() if now_unix_s is None else now_unix_s)
    return await keys.accept(issued.certificate_pem, authority.certificate_pem, authority.pin)


async def test_a_node_enrols_and_finds_its_identity_after_a_restart(keys: NodeKeys, authority: Authority) -> None:
    """The whole way of a key: made, asked for, accepted, loaded by TLS."""
    assert keys.identity() is None
    identity = await enrol(keys, authority)
    assert (identity.node_id, identity.cluster_id) == (NODE_ID, "kp-test")
    assert NodeKeys(keys.directory).identity() == identity
    client_context(identity.ca_pem, keys.identity_file)
    data_plane_listener_context(keys.identity_file)
    assert [path.name for path in keys.directory.iterdir()] == ["identity.pem"], "the pending key is gone"


async def test_an_expired_identity_renews_by_the_proof_of_its_key(keys: NodeKeys, authority: Authority) -> None:
    """Three days off the net: renewal by POST, and then a new key under the same id."""
    old = await enrol(keys, authority, now_unix_s=time.time() - 3 * 86400)
    csr_pem = await keys.new_request()
    signature = await keys.sign_renewal(csr_pem, "ab" * 32)
    peer = check_renewal(
        authority,
        Revocations(),
        certificate_pem=old.certificate_pem.encode(),
        csr_pem=csr_pem,
        nonce="ab" * 32,
        signature=signature,
        now_unix_s=time.time(),
    )
    issued = authority.sign_node(csr_pem, peer.node_id, time.time())
    new = await keys.accept(issued.certificate_pem, authority.certificate_pem, authority.pin)
    assert new.node_id == old.node_id
    assert new.serial != old.serial


async def test_a_certificate_with_another_authority_than_the_pinned_one_is_not_accepted(
    keys: NodeKeys, authority: Authority, foreign_authority: Authority
) -> None:
    """Another coordinator answers the enrolment: the node stays what it is."""
    before = await enrol(keys, authority)
    issued = foreign_authority.sign_node(await keys.new_request(), NODE_ID, time.time())
    with pytest.raises(PinMismatchError):
        await keys.accept(issued.certificate_pem, foreign_authority.certificate_pem, authority.pin)
    assert keys.identity() == before


async def test_a_certificate_for_another_key_is_not_accepted(
    keys: NodeKeys, authority: Authority, make_key: "MakeKey"
) -> None:
    """The coordinator mixed up two nodes: with a foreign certificate TLS would fail later, without a reason."""
    await keys.new_request()
    issued = authority.sign_node(make_key().csr_pem, NODE_ID, time.time())
    with pytest.raises(KeyWorkerError, match="another key"):
        await keys.accept(issued.certificate_pem, authority.certificate_pem, authority.pin)


async def test_a_certificate_that_the_authority_did_not_sign_is_not_accepted(
    keys: NodeKeys, authority: Authority, foreign_authority: Authority
) -> None:
    """A forged answer with the genuine authority beside it."""
    issued = foreign_authority.sign_node(await keys.new_request(), NODE_ID, time.time())
    with pytest.raises(KeyWorkerError):
        await keys.accept(issued.certificate_pem, authority.certificate_pem, authority.pin)
    assert keys.identity() is None


async def test_a_coordinator_certificate_is_no_identity_of_a_node(
    keys: NodeKeys, authority: Authority, server_file: Path, tmp_path: Path
) -> None:
    """Roles must not be exchanged on this side either."""
    pem = server_file.read_bytes()
    start, end = pem.index(b"-----BEGIN CERTIFICATE"), pem.index(authority.certificate_pem)
    keys.directory.mkdir(mode=0o700)
    (keys.directory / "pending-key.pem").write_bytes(pem[:start])
    (keys.directory / "pending-key.pem").chmod(0o600)
    with pytest.raises(WrongRoleError):
        await keys.accept(pem[start:end], authority.certificate_pem, authority.pin)


async def test_keys_are_for_their_owner_only_and_in_no_repr(keys: NodeKeys, authority: Authority) -> None:
    """Other users of the machine look around; exceptions end in logs."""
    identity = await enrol(keys, authority)
    await keys.new_request()
    assert stat.S_IMODE(keys.directory.stat().st_mode) == 0o700
    for path in keys.directory.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert "BEGIN" not in repr(identity)
    load_pem_private_key(keys.identity_file.read_bytes(), None)


async def test_an_identity_that_others_may_read_is_refused(keys: NodeKeys, authority: Authority) -> None:
    """Somebody copied the state directory with another umask: the person is told what to type."""
    await enrol(keys, authority)
    keys.identity_file.chmod(0o640)
    with pytest.raises(InsecureFileError, match="chmod 600"):
        keys.identity()


def test_an_identity_behind_a_symbolic_link_or_a_pipe_is_refused(tmp_path: Path) -> None:
    """A directory that others may write to."""
    (tmp_path / "real").touch(mode=0o600)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(OSError, match="symbolic"):
        load(tmp_path / "link")
    with pytest.raises(InsecureFileError, match="regular"):
        load(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"rubbish", b"kernpool-identity: {}\n", b"\xff\xfe", b'kernpool-identity: {"node_id": 1']
)
def test_a_damaged_identity_is_told_by_name(tmp_path: Path, content: bytes) -> None:
    """A full disk or a bad block, though files are replaced as a whole."""
    path = tmp_path / "identity.pem"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(IdentityFileError, match=r"identity\.pem is damaged"):
        load(path)


async def test_the_key_worker_answers_a_full_or_read_only_disk_with_a_sentence(tmp_path: Path) -> None:
    """The state directory cannot be written."""
    (tmp_path / "file").touch()
    with pytest.raises(KeyWorkerError, match=r"Not a directory|File exists"):
        await NodeKeys(tmp_path / "file").new_request()


@pytest.mark.parametrize("text", [b"", b"[]", b'{"op": "steal"}', b'{"op": "accept", "directory": "/nonexistent"}'])
def test_the_key_worker_answers_rubbish_with_a_name_only(text: bytes) -> None:
    """An exception's text may quote what could not be read, a key perhaps."""
    error = answer(text)["error"]
    assert error["code"] == KeyWorkerError.code
    assert len(error["message"]) < 100


def test_the_agent_side_never_loads_cryptography() -> None:
    """Its 8 MB would stay in every agent for good."""
    modules = ["contexts", "errors", "files", "firstcontact", "identity", "jointoken", "keys", "names", "pin", "times"]
    imports = "; ".join(f"import kernpool_tls.{name}" for name in modules)
    program = f"import json, sys; {imports}; print(json.dumps(sorted(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": str(Path(kernpool_tls.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, timeout=30, env=environment)
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout)}
    assert not loaded & {"cryptography", "pydantic", "sqlalchemy", "numpy"}
