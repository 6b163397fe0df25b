"""Mints the token with which a client goes straight to a node's data plane (DECISIONS 18)."""

import time
from collections.abc import Sequence
from typing import Any

from kernpool_coordinator.http.context import ApiContext
from kernpool_coordinator.tokens.actor import Actor
from kernpool_mesh import datatoken


def access(api: ApiContext, actor: Actor, node_id: str, object_: str, verbs: Sequence[str]) -> dict[str, Any]:
    """AccessBody for one object on one node; raises UnreachableError when the node is not linked.

    The client may still find that it cannot reach any of the URLs: then it goes through the coordinator.
    """
    key_id, key = api.core.data_key(node_id)
    life_s = api.settings.data_token_s
    # Rounded down, so that what we tell the client never outlives the token.
    now_s = time.time()
    expires_s = int(now_s + life_s)
    claims = datatoken.Claims(node_id, object_, tuple(verbs), expires_s, actor.name)
    return {
        "urls": api.nodes.data_plane_urls(node_id),
        "server_name": f"{node_id}.node.kernpool.internal",
        "ca_pem": api.ca_pem,
        "token": datatoken.sign(key, key_id, claims, now_s),
        "expires_in_s": expires_s - now_s,
    }
