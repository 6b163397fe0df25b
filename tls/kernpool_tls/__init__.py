"""Identities: the authority, enrolment, renewal and TLS contexts."""
