"""The messages between a worker and a child process."""

from dataclasses import dataclass

from holdfast.operations.attempts import Memory
from holdfast.operations.claiming import Claimed
from holdfast.values.job import Outcome


@dataclass(frozen=True, slots=True)
class Request:
    """A job for a child, and where the child finds its handler."""

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
    # False if the child has not begun the job. Then, the child died before, and the job is not the cause.
    begun: bool = True


# A child's first message on a job: it has received it.
BEGUN = "begun"
