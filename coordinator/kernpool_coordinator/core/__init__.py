"""The control plane behind the HTTP API: `control.ControlPlane` ties the synchronous truths to store, links and clock.

Nothing is imported here: the rooms below use `core.clock` and `core.session`, and `core.control` uses the rooms.
"""
