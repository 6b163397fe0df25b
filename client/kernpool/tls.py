"""TLS contexts of a client: one for each set of authorities, made once. Imported only where TLS is spoken."""

import ssl
import threading

from kernpool.protocol.origin import Origin
from kernpool.protocol.retries import TransportError

CONTEXTS_MAX = 64

_contexts: dict[tuple[str, str], ssl.SSLContext] = {}
_contexts_lock = threading.Lock()


def tls_context(origin: Origin) -> ssl.SSLContext:
    """Give the context for an origin: its own authority alone where it names one."""
    key = (origin.ca_pem, origin.ca_file)
    with _contexts_lock:
        context = _contexts.get(key)
        if context is None:
            try:
                context = ssl.create_default_context(
                    cadata=origin.ca_pem or None, cafile=None if origin.ca_pem else origin.ca_file or None
                )
            except (OSError, ValueError) as error:
                raise TransportError(f"the CA file {origin.ca_file or '(of the node)'}: {error}", sent=False) from error
            if origin.is_node:
                context.minimum_version = ssl.TLSVersion.TLSv1_3
            if len(_contexts) >= CONTEXTS_MAX:
                _contexts.clear()
            _contexts[key] = context
        return context
