"""Errors of identities: what was refused, of whom, and what to do next. None of them shows a secret."""

from typing import final


class IdentityError(Exception):
    """Base of every error that this room raises; `code` is machine-readable."""

    code = "identity"


# --- files ---


@final
class InsecureFileError(IdentityError):
    """A file with a secret that others may read, or that is no regular file."""

    code = "insecure_file"


@final
class SealError(IdentityError):
    """Sealed bytes that this key does not open."""

    code = "seal"


@final
class IdentityFileError(IdentityError):
    """An identity file that is damaged or of another format."""

    code = "identity_file"


# --- join tokens ---


class JoinTokenError(IdentityError):
    """A join token that is not honoured."""

    code = "join_token"


@final
class JoinTokenMalformedError(JoinTokenError):
    """Not a join token at all."""

    code = "join_token_malformed"


@final
class JoinTokenForeignError(JoinTokenError):
    """Made by another coordinator: it pins another authority, or this one never issued it."""

    code = "join_token_foreign"


@final
class JoinTokenExpiredError(JoinTokenError):
    """Its time is over."""

    code = "join_token_expired"


@final
class JoinTokenUsedError(JoinTokenError):
    """All its uses are spent."""

    code = "join_token_used"


@final
class JoinTokenNodeError(JoinTokenError):
    """Bound to another node id."""

    code = "join_token_node"


# --- enrolment and renewal ---


@final
class PinMismatchError(IdentityError):
    """The server's authority is not the pinned one: the wrong coordinator, or somebody in between."""

    code = "pin_mismatch"


@final
class FirstContactError(IdentityError):
    """The coordinator could not be reached to learn its authority."""

    code = "first_contact"


@final
class ClockSkewError(IdentityError):
    """The two clocks are too far apart for certificates."""

    code = "clock_skew"


@final
class RequestRefusedError(IdentityError):
    """A certificate request that is damaged, unsigned or for a key we do not take."""

    code = "csr_refused"


@final
class RenewalRefusedError(IdentityError):
    """A renewal that is not honoured; the node has to enrol again with a token."""

    code = "renewal_refused"


@final
class RateLimitedError(IdentityError):
    """Too many requests; try again later."""

    code = "rate_limited"


@final
class KeyWorkerError(IdentityError):
    """The child process that handles keys failed."""

    code = "key_worker"


# --- peers ---


class PeerRefusedError(IdentityError):
    """The other side of a connection is not let in."""

    code = "peer_refused"


@final
class NoCertificateError(PeerRefusedError):
    """It showed no client certificate."""

    code = "no_certificate"


@final
class WrongRoleError(PeerRefusedError):
    """Its certificate is for another role, or of another cluster."""

    code = "wrong_role"


@final
class RevokedError(PeerRefusedError):
    """Its node was removed, or its certificate was replaced."""

    code = "revoked"
