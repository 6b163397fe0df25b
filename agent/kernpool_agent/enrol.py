"""How a node becomes one of the cluster's: a join token from a file, a key made here, a certificate from there.

    token file -> pin checked against the coordinator's chain -> key and CSR (key worker) -> POST -> identity saved

Only what the token pins is trusted: the first handshake fetches the authority's certificate and says nothing.
"""

import logging
import time
from pathlib import Path
from urllib.parse import urlsplit

from kernpool_agent import __version__
from kernpool_agent.errors import EnrolRefusedError, LinkRefusedError, UnreachableError
from kernpool_agent.nodehttp import ask
from kernpool_tls import jointoken
from kernpool_tls.contexts import client_context
from kernpool_tls.errors import FirstContactError, IdentityError, JoinTokenError, PinMismatchError
from kernpool_tls.firstcontact import fetch_authority
from kernpool_tls.identity import Identity
from kernpool_tls.jointoken import JoinToken
from kernpool_tls.keys import NodeKeys

log = logging.getLogger(__name__)

TOKEN_FILE_BYTES_MAX = 4096


def read_token(path: Path | None) -> JoinToken:
    """Return the join token in the file. Raises EnrolRefusedError."""
    if path is None:
        raise EnrolRefusedError(
            "this node has no identity yet: make a join token on the coordinator and name its file (--join-token-file)"
        )
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            return jointoken.parse(file.read(TOKEN_FILE_BYTES_MAX))
    except OSError as error:
        raise EnrolRefusedError(f"the join token file {path} cannot be read: {error.strerror}") from error
    except JoinTokenError as error:
        raise EnrolRefusedError(f"{path}: {error}") from error


async def enrol(keys: NodeKeys, token: JoinToken, url: str, hostname: str, *, timeout_s: float) -> Identity:
    """Enrol at the coordinator whose node listener is at `url` and return the saved identity.

    Raises EnrolRefusedError (a person must act: token expired, used or for another coordinator, clocks too far apart)
    or UnreachableError (try again).
    """
    authority_pem = await _authority(token, url, timeout_s)
    try:
        csr_pem = await keys.new_request()
        answer = await ask(
            "POST",
            f"{url}/node/v1/enrol",
            client_context(authority_pem),
            {
                "token": str(token),
                "csr_pem": csr_pem.decode(),
                "hostname": hostname,
                "agent_version": __version__,
                "unix_s": time.time(),
            },
            timeout_s=timeout_s,
        )
        identity = await keys.accept(answer["certificate_pem"].encode(), answer["ca_pem"].encode(), token.pin)
    except LinkRefusedError as error:
        raise EnrolRefusedError(f"the coordinator at {url} refuses this node: {error}") from error
    except IdentityError as error:
        raise EnrolRefusedError(f"enrolment at {url} failed: {error}") from error
    except (KeyError, AttributeError) as error:
        raise EnrolRefusedError(f"{url} answered the enrolment without {error}: no coordinator of ours") from error
    log.info("enrolled as %s in cluster %s", identity.node_id, identity.cluster_id)
    return identity


async def _authority(token: JoinToken, url: str, timeout_s: float) -> str:
    parts = urlsplit(url)
    assert parts.hostname is not None, "the configuration checks the URL"
    try:
        return await fetch_authority(parts.hostname, parts.port or 443, token.pin, timeout_s=timeout_s)
    except PinMismatchError as error:
        raise EnrolRefusedError(f"{url}: {error}") from error
    except FirstContactError as error:
        raise UnreachableError(str(error)) from error
