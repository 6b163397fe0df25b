"""The node's data plane: exec, files, ports and logs over HTTP and WebSocket, the same behind both doors.

A client comes straight to the node's TLS listener with a signed token, or through the coordinator as a stream of the
link. docs/data-plane.md describes the wire.
"""
