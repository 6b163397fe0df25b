"""What can go wrong with a job attempt on its node, as sentences for the person who submitted it."""

from typing import final

from kernpool_agent.errors import AgentError


class JobError(AgentError):
    """Base of the errors of this package."""


@final
class JobStartError(JobError):
    """The attempt could not be started; nothing of it runs. The message says why and what to change."""


@final
class JobNotFoundError(JobError):
    """No attempt of this job and rank is known on this node."""
