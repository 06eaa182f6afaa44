"""Results: waiting for the end of jobs. `hf.jobs.gather` and `job.result` use this module."""

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

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


def gather(
    holdfast: "Holdfast",
    jobs: "Iterable[Job[Any]]",
    timeout: timedelta | float | None,
    *,
    return_exceptions: bool,
) -> list[Any]:
    """Wait until all of these jobs have ended. See `hf.jobs.gather`."""
    waits, seconds = _Waits(holdfast, jobs), _seconds(timeout)
    if waits.missing and seconds is not None and seconds < AT_ONCE:  # too short to wait: ask once
        for end in holdfast.carrier.run(ends_of(waits.missing)):
            waits.look(end, return_exceptions)
    waits.begin()
    try:
        with contextlib.suppress(concurrent.futures.TimeoutError):
            for future in concurrent.futures.as_completed(waits.futures, seconds):
                waits.look(future.result(), return_exceptions)
        if (question := waits.question(return_exceptions, seconds)) is not None:
            with contextlib.suppress(HoldfastError):
                waits.found = holdfast.carrier.run(question)
        return waits.results(return_exceptions, seconds)
    finally:
        waits.drop()


async def agather(
    holdfast: "Holdfast",
    jobs: "Iterable[Job[Any]]",
    timeout: timedelta | float | None,  # noqa: ASYNC109 - the twin of gather
    *,
    return_exceptions: bool,
) -> list[Any]:
    """The async twin of `gather`."""
    waits, seconds = _Waits(holdfast, jobs), _seconds(timeout)
    if waits.missing and seconds is not None and seconds < AT_ONCE:
        for end in await holdfast.carrier.arun(ends_of(waits.missing)):
            waits.look(end, return_exceptions)
    waits.begin()
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for future in asyncio.as_completed(map(asyncio.wrap_future, waits.futures)):
                    waits.look(await future, return_exceptions)
        if (question := waits.question(return_exceptions, seconds)) is not None:
            with contextlib.suppress(HoldfastError):
                waits.found = await holdfast.carrier.arun(question)
        return waits.results(return_exceptions, seconds)
    finally:
        waits.drop()


class _Waits:
    """The jobs that one caller waits for, and the ends that are known so far."""

    def __init__(self, holdfast: "Holdfast", jobs: "Iterable[Job[Any]]") -> None:
        if _is_job(jobs):
            raise limits.refused("jobs", jobs, "must be a list of jobs", hint="Write [job], or job.result().")
        jobs = list(jobs)
        for job in jobs:
            if not _is_job(job):
                raise limits.refused("jobs", job, "must be jobs", hint="Use hf.job(id) for an id.")
        self._tasks = holdfast.tasks
        self._ids = [str(job.id) for job in jobs]
        self._ends: dict[str, End] = {}
        self._waiting = holdfast.resources.waiting
        self._asked: list[str] = []
        self.futures: list[concurrent.futures.Future[End]] = []
        self.found: JobSnapshot | None = None

    @property
    def missing(self) -> list[str]:
        return [job_id for job_id in self._ids if job_id not in self._ends]

    def begin(self) -> None:
        self._asked = self.missing
        self.futures = self._waiting.add(self._asked)

    def look(self, end: End, return_exceptions: bool) -> None:
        self._ends[end.id] = end
        if not return_exceptions and (error := _failure(end)) is not None:
            raise error

    def question(self, return_exceptions: bool, seconds: float | None) -> Call[JobSnapshot | None] | None:
        """Return the call that asks for the state of a late job, unless the caller is only polling."""
        if not self.missing or return_exceptions or seconds is None or seconds < AT_ONCE:
            return None
        return find_job(UUID(self.missing[0]))

    def results(self, return_exceptions: bool, seconds: float | None) -> list[Any]:
        if self.missing and not return_exceptions:
            raise _late(self.missing, seconds, self.found)
        return [self._result(job_id, seconds) for job_id in self._ids]

    def _result(self, job_id: str, seconds: float | None) -> Any:
        end = self._ends.get(job_id)
        if end is None:
            return _late([job_id], seconds)
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
        for job_id, future in zip(self._asked, self.futures, strict=True):
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
