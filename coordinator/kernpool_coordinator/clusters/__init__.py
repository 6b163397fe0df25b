"""Clusters: named holds on capacity, each with a line of its own."""
