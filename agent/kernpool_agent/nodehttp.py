"""The coordinator's few plain requests to nodes (enrol, nonce, renew), before or beside the link."""

import json
import ssl
from typing import Any

import aiohttp

from kernpool_agent.errors import LinkRefusedError, UnreachableError
from kernpool_tls.names import COORDINATOR_DNS_NAME

ANSWER_BYTES_MAX = 256 * 1024


async def ask(
    method: str, url: str, context: ssl.SSLContext, body: dict[str, Any] | None = None, *, timeout_s: float
) -> dict[str, Any]:
    """Return the JSON answer.

    Raises LinkRefusedError with the coordinator's own sentence when it refuses (4xx), UnreachableError when it does not
    answer, is too busy or fails.
    """
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s)) as session,
            session.request(method, url, json=body, ssl=context, server_hostname=COORDINATOR_DNS_NAME) as response,
        ):
            data = await response.content.read(ANSWER_BYTES_MAX)
            answer = _json(data)
            if response.status < 300:
                return answer
            sentence = f"{answer.get('message') or response.reason} {answer.get('hint') or ''}".strip()
            if response.status == 429 or response.status >= 500:
                raise UnreachableError(f"{url} answered {response.status}: {sentence}")
            raise LinkRefusedError(sentence)
    except TimeoutError:
        raise UnreachableError(f"{url} did not answer within {timeout_s:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise UnreachableError(f"cannot reach {url}: {error}") from error


def _json(data: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(data)
    except ValueError:
        return {"message": data[:200].decode("utf-8", "replace")}
    return answer if isinstance(answer, dict) else {"message": str(answer)[:200]}
