"""Errors of the rooms below, translated into Problems at the border."""

import errno
import logging
from collections.abc import Mapping
from typing import Final

from kernpool_agent.dataplane.problems import ProblemError
from kernpool_agent.jobs.errors import JobNotFoundError
from kernpool_sandbox.errors import FileError, SandboxError

_log = logging.getLogger(__name__)

_STATUS_OF_CODE: Final[Mapping[str, int]] = {
    "not_found": 404,
    "ended": 410,
    "conflict": 409,
    "invalid": 400,
    "image_failed": 422,
    "no_capacity": 503,
    "busy": 503,
    "start_failed": 502,
    "refused": 403,
    "disk_full": 507,
}
_OF_ERRNO: Final[Mapping[int, tuple[int, str]]] = {
    errno.ENOENT: (404, "not_found"),
    errno.EACCES: (403, "forbidden"),
    errno.EPERM: (403, "forbidden"),
    errno.EROFS: (403, "forbidden"),
    errno.EEXIST: (409, "conflict"),
    errno.ENOTEMPTY: (409, "conflict"),
    errno.EXDEV: (409, "conflict"),
    errno.EBUSY: (409, "conflict"),
    errno.ETXTBSY: (409, "conflict"),
    errno.EISDIR: (400, "invalid"),
    errno.ENOTDIR: (400, "invalid"),
    errno.EINVAL: (400, "invalid"),
    errno.ELOOP: (400, "invalid"),
    errno.ENAMETOOLONG: (400, "invalid"),
    errno.ENXIO: (400, "invalid"),
    errno.ENODEV: (400, "invalid"),
    errno.EFBIG: (413, "too_large"),
    errno.ENOSPC: (507, "disk_full"),
    errno.EDQUOT: (507, "disk_full"),
    errno.ETIMEDOUT: (504, "timeout"),
}


def problem_or_log(error: Exception, what: str) -> ProblemError:
    """Give the Problem of an error; one that is a fault of ours is logged, and the client told no more than that."""
    problem = _problem_of(error)
    if problem is None:
        _log.error("%s", what, exc_info=error)
        return ProblemError(500, "internal", "the node could not do this; its agent's log says why")
    return problem


def _problem_of(error: Exception) -> ProblemError | None:
    match error:
        case ProblemError():
            return error
        case FileError():
            status, code = _OF_ERRNO.get(error.errno, (500, "internal"))
            return ProblemError(status, code, str(error))
        case SandboxError():
            return ProblemError(_STATUS_OF_CODE.get(error.code, 500), error.code, str(error))
        case JobNotFoundError():
            return ProblemError(404, "not_found", str(error))
        case ConnectionError():
            return ProblemError(400, "gone", "the client went away")
    return None
