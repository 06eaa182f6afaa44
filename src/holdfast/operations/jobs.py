"""Jobs: `hf.jobs` reads and changes them, by id or many at a time. `job.py` has the handle on one job."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, overload
from uuid import UUID

from holdfast.operations.base import Namespace, operation, twin
from holdfast.operations.results import gathering
from holdfast.operations.run_steps import Steps, arun_steps, run_steps
from holdfast.operations.snapshots import get_job, list_jobs
from holdfast.values import limits
from holdfast.values.call import Call, Rows, function, interval, one
from holdfast.values.encoding import shown
from holdfast.values.errors import suggest
from holdfast.values.job import JobSnapshot, JobState

if TYPE_CHECKING:
    from holdfast.operations.job import Job

R = TypeVar("R")

CANCEL_BATCH = 10_000
_job_errors = function("job_errors", "id uuid")
_job_steps = function("job_steps", "id uuid", "name, result::text, attempt, worker, finished_at, duration")
_job_checkpoint = function("job_checkpoint", "id uuid", value="text")
_why = function("why", "id uuid")
_cancel = function("cancel", "id uuid")
_cancel_many = function("cancel_many", "ids uuid[]")
_cancel_matching = function(
    "cancel_matching",
    "queue text, task text, state text, amount integer, after uuid, everything boolean",
    "cancelled, requested, last_id",
)
_give_up = function("give_up", "id uuid, reason text")
_run_now = function("run_now", "id uuid")
_reschedule = function("reschedule", "id uuid, run_at timestamptz, delay interval")


class AttemptError(NamedTuple):
    attempt: int
    failed_at: datetime
    worker: UUID | None
    error: str
    traceback: str | None


class StepRow(NamedTuple):
    """A step that a job has finished."""

    name: str
    result: Any
    attempt: int
    worker: UUID | None
    finished_at: datetime
    duration: timedelta | None


class Reason(NamedTuple):
    """A reason why a job does not run, or how it ended: a word for programs, a sentence and a remedy."""

    answer: str
    explanation: str
    remedy: str | None
    detail: dict[str, Any]


class Cancelled(NamedTuple):
    """The number of jobs that were cancelled at once, and of those that workers were asked to stop."""

    cancelled: int
    requested: int


class Jobs(Namespace):
    """The jobs of one database, identified by their ids."""

    called = "list(…)"

    @operation
    def get(self, job: UUID | str) -> Call[JobSnapshot]:
        """Return the current state of a job.

        Raises `JobNotFound` if its retention time is over, or its transaction was rolled back.
        """
        return get_job(limits.identity("id", job))

    aget = twin(get)

    @operation
    def why(self, job: UUID | str) -> Call["list[Reason]"]:
        """Return the reasons why a job does not run, the decisive one first, and what to do about each.

        A job that has ended, and an unknown id, are explained as well.
        """
        return _why(lambda rows: [Reason._make(row) for row in rows], limits.identity("id", job))

    awhy = twin(why)

    @operation
    def errors(self, job: UUID | str) -> Call["list[AttemptError]"]:
        """Return the error of each failed attempt, the first attempt first."""
        return _job_errors(lambda rows: [AttemptError._make(row) for row in rows], limits.identity("id", job))

    aerrors = twin(errors)

    @operation
    def steps(self, job: UUID | str) -> Call["list[StepRow]"]:
        """Return the steps that a job has finished, in their order."""
        return _job_steps(_read_steps, limits.identity("id", job))

    asteps = twin(steps)

    @operation
    def checkpoint(self, job: UUID | str) -> Call[dict[str, Any] | None]:
        """Return the last checkpoint that the handler stored with `ctx.checkpoint`."""
        return _job_checkpoint(lambda rows: shown(one(rows)), limits.identity("id", job))

    acheckpoint = twin(checkpoint)

    @operation
    def cancel(self, job: UUID | str) -> Call[str]:
        """Cancel a job, and return `cancelled`, or `requested` if a worker holds it.

        A job that has ended stays as it is; its state is returned.
        """
        return _cancel(one, limits.identity("id", job))

    acancel = twin(cancel)

    @operation
    def cancel_many(self, jobs: Iterable[UUID | str]) -> Call[dict[UUID, str | None]]:
        """Cancel many jobs; return for each what `cancel` returns, or `None` if there is no such job."""
        if isinstance(jobs, str | UUID) or not isinstance(jobs, Iterable):
            raise limits.refused(
                "ids", jobs, "must be a list of ids", hint="Write [id], or hf.job(id).cancel()."
            )
        ids = [limits.identity("ids", job) for job in jobs]
        return _cancel_many(lambda rows: {row[0]: row[1] for row in rows}, ids)

    acancel_many = twin(cancel_many)

    @operation
    def cancel_matching(
        self,
        *,
        queue: str | None = None,
        task: str | None = None,
        state: JobState | str | None = None,
        everything: bool = False,
    ) -> Steps[Cancelled]:
        """Cancel all live jobs of a queue, a task or both, in batches, and return their number.

        Without a queue and a task it needs `everything=True`.
        """
        if not limits.truth("everything", everything) and not queue and not task:
            raise limits.refused(
                "everything",
                everything,
                "no queue and no task is given",
                hint="Write everything=True for all jobs.",
            )
        cancelled = requested = 0
        last: UUID | None = None
        while True:
            chosen = (queue or None, task or None, _known(state), CANCEL_BATCH, last, everything)
            batch = yield _cancel_matching(lambda rows: rows[0], *chosen)
            cancelled, requested, last = cancelled + batch[0], requested + batch[1], batch[2]
            if last is None:
                return Cancelled(cancelled, requested)

    acancel_matching = twin(cancel_matching)

    @operation
    def run_now(self, job: UUID | str) -> Call[JobState]:
        """Run a job without waiting for its time or its backoff, and return its new state."""
        return _run_now(lambda rows: JobState(one(rows)), limits.identity("id", job))

    arun_now = twin(run_now)

    @operation
    def reschedule(
        self, job: UUID | str, *, run_at: datetime | None = None, delay: timedelta | float | None = None
    ) -> Call[datetime]:
        """Change the time of a scheduled job and return it. Raises `IllegalTransition` for any other job."""
        if (run_at is None) == (delay is None):
            raise limits.refused("run_at", run_at, "give either run_at or delay")
        return _reschedule(
            one,
            limits.identity("id", job),
            None if run_at is None else limits.moment("run_at", run_at),
            None if delay is None else interval(limits.duration("delay", delay)),
        )

    areschedule = twin(reschedule)

    @operation
    def give_up(self, job: UUID | str, reason: str | None = None) -> Call[JobState]:
        """Move a waiting job to the dead letters. Raises `IllegalTransition` if it does not wait."""
        return _give_up(lambda rows: JobState(one(rows)), limits.identity("id", job), reason)

    agive_up = twin(give_up)

    @overload
    def gather(
        self,
        jobs: "Iterable[Job[R]]",
        *,
        timeout: timedelta | float | None = None,
        return_exceptions: Literal[False] = False,
    ) -> "list[R]": ...
    @overload
    def gather(
        self,
        jobs: "Iterable[Job[R]]",
        *,
        timeout: timedelta | float | None = None,
        return_exceptions: bool,
    ) -> "list[R | BaseException]": ...
    def gather(
        self,
        jobs: "Iterable[Job[Any]]",
        *,
        timeout: timedelta | float | None = None,
        return_exceptions: bool = False,
    ) -> "list[Any]":
        """Wait until all of these jobs have ended, and return their results in the same order.

        If one has no result, this raises the error of `job.result()` at once. With `return_exceptions` it
        returns the error instead of that result.
        """
        steps = gathering(self._holdfast, jobs, timeout, return_exceptions=return_exceptions)
        return run_steps(steps, self.carrier)

    @overload
    async def agather(
        self,
        jobs: "Iterable[Job[R]]",
        *,
        timeout: timedelta | float | None = None,  # noqa: ASYNC109
        return_exceptions: Literal[False] = False,
    ) -> "list[R]": ...
    @overload
    async def agather(
        self,
        jobs: "Iterable[Job[R]]",
        *,
        timeout: timedelta | float | None = None,  # noqa: ASYNC109
        return_exceptions: bool,
    ) -> "list[R | BaseException]": ...
    async def agather(
        self,
        jobs: "Iterable[Job[Any]]",
        *,
        timeout: timedelta | float | None = None,  # noqa: ASYNC109 - the twin of gather
        return_exceptions: bool = False,
    ) -> "list[Any]":
        """The async twin of `gather`."""
        steps = gathering(self._holdfast, jobs, timeout, return_exceptions=return_exceptions)
        return await arun_steps(steps, self.carrier)

    @operation
    def list(
        self,
        *,
        queue: str | None = None,
        task: str | None = None,
        state: JobState | str | None = None,
        limit: int = 50,
    ) -> Call["list[JobSnapshot]"]:
        """Return the matching jobs, the last changed first."""
        limits.integer("limit", limit, range(1, 100_001))
        return list_jobs(queue=queue, task=task, state=_known(state), amount=limit)

    alist = twin(list)


def _read_steps(rows: Rows) -> list[StepRow]:
    return [StepRow._make(row)._replace(result=shown(row[1])) for row in rows]


def _known(state: JobState | str | None) -> JobState | None:
    """Return the state of this name. Raises `BadInput`, which suggests a similar name."""
    if state is None:
        return None
    try:
        return JobState(state)
    except ValueError:
        raise limits.refused(
            "state", state, "is not a state", hint=suggest(str(state), [known.value for known in JobState])
        ) from None
