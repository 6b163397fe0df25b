"""The agent's side of the key worker: asks the short-lived child for keys, proofs and accepted certificates."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any, Final, final

from kernpool_tls import errors
from kernpool_tls.errors import IdentityError, KeyWorkerError
from kernpool_tls.identity import Identity, load

IDENTITY_FILE: Final = "identity.pem"
"""Key, certificate and authority; also what TLS contexts load."""
PENDING_FILE: Final = "pending-key.pem"
"""The key of the certificate that was asked for and has not come yet."""
DEADLINE_S: Final = 30.0
_ERRORS: Final = {
    cls.code: cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, IdentityError)
}


@final
class NodeKeys:
    """The keys of one node, in one directory. Every method starts a child, about 0.2 s of CPU: a few times a day."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = asyncio.Lock()

    @property
    def identity_file(self) -> Path:
        """What TLS contexts load once the node is enrolled."""
        return self.directory / IDENTITY_FILE

    def identity(self) -> Identity | None:
        """Who this node is; None before enrolment. Raises like `identity.load`."""
        return load(self.identity_file)

    async def new_request(self) -> bytes:
        """The PEM of a certificate request for a new key, which is kept until `accept`. Raises IdentityError."""
        return str((await self._ask("new_request"))["csr_pem"]).encode()

    async def accept(self, certificate_pem: bytes, ca_pem: bytes, pin: str) -> Identity:
        """Take the certificate for the last request, if it is genuine and ours, as this node's identity.

        Raises PinMismatchError, WrongRoleError, KeyWorkerError; the identity before stays in force then.
        """
        await self._ask("accept", certificate_pem=certificate_pem.decode(), ca_pem=ca_pem.decode(), pin=pin)
        identity = self.identity()
        assert identity is not None
        return identity

    async def sign_renewal(self, csr_pem: bytes, nonce: str) -> str:
        """The proof, by the current identity's key, for renewing with this request. Raises IdentityError."""
        return str((await self._ask("sign_renewal", csr_pem=csr_pem.decode(), nonce=nonce))["signature"])

    async def _ask(self, operation: str, **fields: str) -> dict[str, Any]:
        request = {"op": operation, "directory": str(self.directory), **fields}
        async with self._lock:
            result = await _run_child(json.dumps(request).encode())
        if "error" in result:
            code, message = result["error"]["code"], result["error"]["message"]
            raise _ERRORS.get(code, KeyWorkerError)(message)
        answer: dict[str, Any] = result["ok"]
        return answer


def _environment() -> dict[str, str]:
    """The child has to find this very package, whichever way its parent came by it."""
    here = str(Path(__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))}


async def _run_child(request: bytes) -> dict[str, Any]:
    pipe = asyncio.subprocess.PIPE
    arguments = ("-m", "kernpool_tls.keyworker")
    child = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdin=pipe, stdout=pipe, stderr=pipe, env=_environment()
    )
    try:
        async with asyncio.timeout(DEADLINE_S):
            output, complaint = await child.communicate(request)
    except TimeoutError:
        raise KeyWorkerError(f"the key worker did not answer within {DEADLINE_S:.0f} s") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    try:
        result: dict[str, Any] = json.loads(output)
    except ValueError:
        last_line = complaint.decode(errors="replace").strip().rpartition("\n")[2]
        raise KeyWorkerError(f"the key worker failed with status {child.returncode}: {last_line}") from None
    return result
