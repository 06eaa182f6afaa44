"""What a worker in a test lets be seen of it, and at which moment it is to be lost."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, NamedTuple

from holdfast.calls import Claimed

Moment = Literal["before", "during", "after"]


class Crash(BaseException):
    """Raised in a handler, it loses the worker without a word: only in one run by `crash.during()`.

    In any other worker it is a failure of the job like every exception.
    """

    def __str__(self) -> str:
        return "crash.here() was called in a worker that crash.during() did not run"


class Failure(NamedTuple):
    """What a handler raised; the exception itself unless it ran in a process of its own."""

    text: str
    error: BaseException | None


class Lost(NamedTuple):
    worker: str
    lease_time: timedelta
    job: Claimed


@dataclass(slots=True)
class Stage:
    moment: Moment | None = None
    task: str | None = None
    # By the id of the job: what its last attempt raised.
    failures: dict[str, Failure] = field(default_factory=dict)
    lost: Lost | None = None

    def ends(self, moment: Moment, job: Claimed) -> bool:
        """Whether the worker is to be lost now, with this job."""
        return self.moment == moment and self.lost is None and self.task in {None, job.task}
