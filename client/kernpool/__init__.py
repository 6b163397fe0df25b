"""Kernpool: run AI jobs and millisecond sandboxes on any machine you can reach."""

__version__ = "0.1.0"
