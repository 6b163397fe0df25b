"""Idempotency keys: a request that is sent twice is done once."""
