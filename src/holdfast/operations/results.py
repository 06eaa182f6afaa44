"""Results: waiting for the end of jobs. `hf.jobs.gather` and `job.result` use this module."""

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from holdfast.operations.run_steps import Action, Steps
from holdfast.operations.snapshots import find_job, unknown
from holdfast.values import arrays, limits
from holdfast.values.call import Call, function, nothing
from holdfast.values.encoding import Unstorable, from_json
from holdfast.values.errors import BadResult, HoldfastError, JobCancelled, JobFailed
from holdfast.values.job import JobSnapshot

if TYPE_CHECKING:
    from holdfast.client import Holdfast
    from holdfast.operations.job import Job

# With a shorter timeout, the database is asked once instead of waiting for a notification.
AT_ONCE = 0.2

_await_jobs = function("await_jobs", "ids uuid[], channel text")
_await_no_more = function("await_no_more", "ids uuid[], channel text")
_ends = function("ends", "ids uuid[]", "id::text, task, state, result::text, error")


class End(NamedTuple):
    """The end of a job. `result` is JSON text, and `state` is `None` if there is no such job."""

    id: str
    task: str | None
    state: str | None
    result: str | None
    error: str | None


def await_jobs(ids: Sequence[str], channel: str) -> Call[None]:
    return _await_jobs.plain(nothing, arrays.words(ids), channel)


def await_no_more(ids: Sequence[str], channel: str) -> Call[None]:
    return _await_no_more.plain(nothing, arrays.words(ids), channel)


def ends_of(ids: Sequence[str]) -> Call[list[End]]:
    """Return the end of each job that has ended."""
    return _ends.plain(lambda rows: [End._make(row) for row in rows], arrays.words(ids))


def gathering(
    holdfast: "Holdfast",
    jobs: "Iterable[Job[Any]]",
    timeout: timedelta | float | None,
    *,
    return_exceptions: bool,
) -> Steps[list[Any]]:
    """Wait until all of these jobs have ended. See `hf.jobs.gather`."""
    waits = _Waits(holdfast, jobs, _seconds(timeout), return_exceptions)
    if waits.is_short:
        for end in (yield ends_of(waits.missing)):
            waits.look(end)
    waits.begin()
    try:
        yield Action(waits.wait, waits.await_ends)
        if (question := waits.question()) is not None:
            with contextlib.suppress(HoldfastError):
                waits.found = yield question
        return waits.results()
    finally:
        waits.drop()


class _Waits:
    """The jobs that one caller waits for, and the ends that are known so far."""

    def __init__(
        self,
        holdfast: "Holdfast",
        jobs: "Iterable[Job[Any]]",
        seconds: float | None,
        return_exceptions: bool,
    ) -> None:
        if _is_job(jobs):
            raise limits.refused("jobs", jobs, "must be a list of jobs", hint="Write [job], or job.result().")
        jobs = list(jobs)
        for job in jobs:
            if not _is_job(job):
                raise limits.refused("jobs", job, "must be jobs", hint="Use hf.job(id) for an id.")
        self._seconds = seconds
        self._return_exceptions = return_exceptions
        self._tasks = holdfast.tasks
        self._ids = [str(job.id) for job in jobs]
        self._ends: dict[str, End] = {}
        self._waiting = holdfast.resources.waiting
        self._asked: list[str] = []
        self._futures: list[concurrent.futures.Future[End]] = []
        self.found: JobSnapshot | None = None

    @property
    def missing(self) -> list[str]:
        return [job_id for job_id in self._ids if job_id not in self._ends]

    @property
    def is_short(self) -> bool:
        """Return whether the timeout is too short to wait for a notification."""
        return bool(self.missing) and self._seconds is not None and self._seconds < AT_ONCE

    def begin(self) -> None:
        self._asked = self.missing
        self._futures = self._waiting.add(self._asked)

    def wait(self) -> None:
        with contextlib.suppress(concurrent.futures.TimeoutError):
            for future in concurrent.futures.as_completed(self._futures, self._seconds):
                self.look(future.result())

    async def await_ends(self) -> None:
        """The async twin of `wait`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._seconds):
                for future in asyncio.as_completed(map(asyncio.wrap_future, self._futures)):
                    self.look(await future)

    def look(self, end: End) -> None:
        self._ends[end.id] = end
        if not self._return_exceptions and (error := _failure(end)) is not None:
            raise error

    def question(self) -> Call[JobSnapshot | None] | None:
        """Return the call that asks for the state of a late job, unless the caller is only polling."""
        if not self.missing or self._return_exceptions or self._seconds is None or self.is_short:
            return None
        return find_job(UUID(self.missing[0]))

    def results(self) -> list[Any]:
        if self.missing and not self._return_exceptions:
            raise _late(self.missing, self._seconds, self.found)
        return [self._result(job_id) for job_id in self._ids]

    def _result(self, job_id: str) -> Any:
        end = self._ends.get(job_id)
        if end is None:
            return _late([job_id], self._seconds)
        if (error := _failure(end)) is not None:
            return error
        try:
            value = None if end.result is None else from_json(end.result)
        except Unstorable as trouble:
            raise BadResult(
                f"the result of job {job_id} cannot be read: {trouble.reason}", task=end.task
            ) from trouble
        known = end.task is not None and end.task in self._tasks
        return self._tasks.get(end.task).decode_result(value) if known and end.task else value

    def drop(self) -> None:
        """Stop waiting for the jobs that have not ended."""
        for job_id, future in zip(self._asked, self._futures, strict=True):
            if not future.done():
                self._waiting.drop(job_id, future)


def _is_job(value: object) -> bool:
    return isinstance(getattr(value, "id", None), UUID)


def _late(ids: list[str], seconds: float | None, found: JobSnapshot | None = None) -> TimeoutError:
    others = f" and {len(ids) - 1} more" if len(ids) > 1 else ""
    state = f"; its state is {found.state}" if found is not None else ""
    return TimeoutError(
        f"job {ids[0]}{others} has not ended within {seconds or 0:g} s{state}. `holdfast why ID` says why."
    )


def _failure(end: End) -> HoldfastError | None:
    """Return the error for a job without a result, or None for a completed job."""
    job_id = UUID(end.id)
    match end.state:
        case "completed":
            return None
        case "dead":
            return JobFailed(f"job {job_id} is dead: {end.error}", id=job_id, error=end.error)
        case "cancelled":
            return JobCancelled(f"job {job_id} was cancelled", id=job_id, reason=end.error)
        case _:
            return unknown(job_id)


def _seconds(timeout: timedelta | float | None) -> float | None:
    return None if timeout is None else limits.duration("timeout", timeout).total_seconds()
