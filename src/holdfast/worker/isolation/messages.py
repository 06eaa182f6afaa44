"""The messages between a worker and a child process."""

from dataclasses import dataclass

from holdfast.operations.attempts import Memory
from holdfast.operations.claiming import Claimed
from holdfast.values.job import Outcome


@dataclass(frozen=True, slots=True)
class Request:
    """A job for a child, and the module and name of its handler."""

    module: str
    attribute: str
    job: Claimed
    memory: Memory | None
    dsn: str
    transaction_pooling: bool | None


@dataclass(frozen=True, slots=True)
class Reply:
    outcome: Outcome
    completed: bool
    # False if the child died before it began the job. Then the job is not the cause.
    begun: bool = True


# A child's first message on a job confirms that it has received the job.
BEGUN = "begun"
