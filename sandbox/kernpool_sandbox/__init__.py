"""Sandboxes and jobs on one node: images, the parked pool, isolation, exec and files."""
