"""The errors of a test worker's handlers, and the moment when the worker is lost."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, NamedTuple

from holdfast.operations.claiming import Claimed

Moment = Literal["before", "during", "after"]


class Crash(BaseException):
    """Raised in a handler, it silently loses the worker, but only in a run by `crash.during()`.

    In any other worker it fails the job, like every exception.
    """

    def __str__(self) -> str:
        return "crash.here() was called in a worker that crash.during() did not run"


class HandlerError(NamedTuple):
    """The error of a handler, with the exception itself unless the handler ran in another process."""

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
    # The error of each job's last attempt, by the id of the job.
    failures: dict[str, HandlerError] = field(default_factory=dict)
    lost: Lost | None = None

    def ends(self, moment: Moment, job: Claimed) -> bool:
        """Return whether to lose the worker now, with this job."""
        return self.moment == moment and self.lost is None and self.task in {None, job.task}
