"""Nodes: who has joined, who is there, what they have, and the live links to them."""
