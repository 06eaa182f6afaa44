"""One run of a worker in a test: when it is to be lost, and the errors of its handlers."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, NamedTuple

from holdfast.operations.claiming import Claimed

Moment = Literal["before", "during", "after"]


class Crash(BaseException):
    """An exception that loses the worker if a handler raises it in a run by `crash.during()`.

    In any other run it fails the job, as every exception does.
    """

    def __str__(self) -> str:
        return "crash.here() was called in a worker that crash.during() did not run"


class HandlerError(NamedTuple):
    """The error of a handler, with the exception itself unless the handler ran in another process."""

    text: str
    error: BaseException | None


class Lost(NamedTuple):
    """The worker that was lost, and the job that it held."""

    worker: str
    lease_time: timedelta
    job: Claimed


@dataclass(slots=True)
class WorkerRun:
    """One run of a worker: when and with which task it is to be lost, and what happened."""

    moment: Moment | None = None
    task: str | None = None
    # The error of each job's last attempt, by the id of the job.
    failures: dict[str, HandlerError] = field(default_factory=dict)
    lost: Lost | None = None

    def ends(self, moment: Moment, job: Claimed) -> bool:
        """Return whether to lose the worker now, with this job."""
        return self.moment == moment and self.lost is None and self.task in {None, job.task}
