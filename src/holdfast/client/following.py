"""Waiting for the end of jobs, and following what happens to them."""

import asyncio
import concurrent.futures
import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

from holdfast import calls
from holdfast.calls import Call, End, Event
from holdfast.client.asking import Asking
from holdfast.client.job import unknown
from holdfast.task import JobHandle, Registry
from holdfast.values import limits
from holdfast.values.encoding import Unstorable, from_json
from holdfast.values.errors import BadResult, HoldfastError, JobCancelled, JobFailed
from holdfast.values.job import JobSnapshot
from holdfast.waiting import Waiting

EMPTY_LOOKS = 20
AT_ONCE = 0.2


class Following(Asking):
    tasks: Registry

    @property
    def waiting(self) -> Waiting:
        """Who waits in this process for the end of jobs."""
        raise NotImplementedError

    def gather(
        self,
        jobs: Iterable[JobHandle[Any]],
        *,
        timeout: timedelta | float | None = None,
        return_exceptions: bool = False,
    ) -> list[Any]:
        """Wait for the end of all of these; their results, in the same order.

        If one has none, what `job.result()` would raise is raised at once, or stands in its place with
        `return_exceptions`.
        """
        waits, seconds = _Waits(self, jobs), _seconds(timeout)
        if waits.missing and seconds is not None and seconds < AT_ONCE:  # who cannot wait asks once
            for end in self.run(calls.ends(waits.missing)):
                waits.look(end, return_exceptions)
        waits.begin()
        try:
            with contextlib.suppress(concurrent.futures.TimeoutError):
                for future in concurrent.futures.as_completed(waits.futures, seconds):
                    waits.look(future.result(), return_exceptions)
            if (question := waits.question(return_exceptions, seconds)) is not None:
                with contextlib.suppress(HoldfastError):
                    waits.found = self.run(question)
            return waits.results(return_exceptions, seconds)
        finally:
            waits.drop()

    async def agather(
        self,
        jobs: Iterable[JobHandle[Any]],
        *,
        timeout: timedelta | float | None = None,  # noqa: ASYNC109 - the twin of gather
        return_exceptions: bool = False,
    ) -> list[Any]:
        waits, seconds = _Waits(self, jobs), _seconds(timeout)
        if waits.missing and seconds is not None and seconds < AT_ONCE:
            for end in await self.arun(calls.ends(waits.missing)):
                waits.look(end, return_exceptions)
        waits.begin()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    for future in asyncio.as_completed(map(asyncio.wrap_future, waits.futures)):
                        waits.look(await future, return_exceptions)
            if (question := waits.question(return_exceptions, seconds)) is not None:
                with contextlib.suppress(HoldfastError):
                    waits.found = await self.arun(question)
            return waits.results(return_exceptions, seconds)
        finally:
            waits.drop()

    def events(
        self,
        *,
        job_id: UUID | str | None = None,
        queue: str | None = None,
        after: str | None = None,
        follow: bool = True,
        poll: float = 0.5,
    ) -> Iterator[Event]:
        """The events of a job, of a queue, or of all: those that were, in order, then those that come.

        Each has the `cursor` to go on `after` it, also in another process: none is missed and none comes
        twice, whenever its transaction commits. `after="now"` leaves out those that were, and `follow=False`
        those that come. Those of one job end with the job.
        """
        feed = _Feed(job_id, queue, after, poll)
        if after == "now":
            feed.after = self.run(feed.now())
        while True:
            ahead: str | None = None
            if feed.quiet:
                ahead = self.run(feed.now())
            page = self.run(feed.read())
            yield from feed.take(page, ahead)
            if page:
                continue
            if feed.over or (not follow and feed.job is None):
                return
            ends = self.run(calls.ends([str(feed.job)])) if feed.job is not None else []
            if feed.is_over(ends) and follow:
                feed.over = True  # and once more, for what came before its end
            elif not follow:
                return
            else:
                time.sleep(feed.poll)

    async def aevents(
        self,
        *,
        job_id: UUID | str | None = None,
        queue: str | None = None,
        after: str | None = None,
        follow: bool = True,
        poll: float = 0.5,
    ) -> AsyncIterator[Event]:
        feed = _Feed(job_id, queue, after, poll)
        if after == "now":
            feed.after = await self.arun(feed.now())
        while True:
            ahead: str | None = None
            if feed.quiet:
                now = await self.arun(feed.now())
                ahead = now
            page = await self.arun(feed.read())
            for event in feed.take(page, ahead):
                yield event
            if page:
                continue
            if feed.over or (not follow and feed.job is None):
                return
            ends = await self.arun(calls.ends([str(feed.job)])) if feed.job is not None else []
            if feed.is_over(ends) and follow:
                feed.over = True
            elif not follow:
                return
            else:
                await asyncio.sleep(feed.poll)


class _Waits:
    """The ends of some jobs, as they come."""

    def __init__(self, holdfast: Following, jobs: Iterable[JobHandle[Any]]) -> None:
        if isinstance(jobs, JobHandle):
            raise limits.refused("jobs", jobs, "must be a list of jobs", hint="Write [job], or job.result().")
        jobs = list(jobs)
        for job in jobs:
            if not isinstance(job, JobHandle):
                raise limits.refused("jobs", job, "must be jobs", hint="hf.job(id) makes one of an id.")
        self._tasks = holdfast.tasks
        self._ids = [str(job.id) for job in jobs]
        self._ends: dict[str, End] = {}
        self._waiting = holdfast.waiting
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
        """The question for the state of a job that is late, unless the caller only asks again and again."""
        if not self.missing or return_exceptions or seconds is None or seconds < AT_ONCE:
            return None
        return calls.job(UUID(self.missing[0]))

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
        """Wait no more for those that have not ended."""
        for job_id, future in zip(self._asked, self.futures, strict=True):
            if not future.done():
                self._waiting.drop(job_id, future)


class _Feed:
    """Where somebody is in the events of a job, a queue or all."""

    def __init__(self, job_id: UUID | str | None, queue: str | None, after: str | None, poll: float) -> None:
        if job_id is not None and queue is not None:
            raise limits.refused("queue", queue, "give either job_id or queue")
        self.job = None if job_id is None else limits.identity("job_id", job_id)
        self.queue = None if queue is None else limits.name("queue", queue)
        self.after = None if after is None else limits.text("after", after)
        self.poll = limits.number("poll", poll, 0.01, 3600)
        self.over = False
        self._empty = 0

    def now(self) -> Call[str]:
        return calls.event_cursor(self.job)

    def read(self) -> Call[list[Event]]:
        return calls.read_events(job_id=self.job, queue=self.queue, after=self.after)

    @property
    def quiet(self) -> bool:
        """Whether there was nothing for so long that the cursor is worth moving by itself.

        Each look walks over what came since the cursor, also in other queues. One that was taken before a
        look that found nothing is as good.
        """
        return self.job is None and self._empty >= EMPTY_LOOKS

    def is_over(self, ends: list[End]) -> bool:
        """Whether its job has ended; raises `JobNotFound` if there is none."""
        for end in ends:
            if end.state is None and self.after is None:
                raise unknown(UUID(end.id))
        return bool(ends)

    def take(self, page: list[Event], ahead: str | None) -> list[Event]:
        self._empty = 0 if page or ahead else self._empty + 1
        if page:
            self.after = page[-1].cursor
        elif ahead is not None:
            self.after = ahead
        return page


def _late(ids: list[str], seconds: float | None, found: JobSnapshot | None = None) -> TimeoutError:
    others = f" and {len(ids) - 1} more" if len(ids) > 1 else ""
    state = f"; its state is {found.state}" if found is not None else ""
    return TimeoutError(
        f"job {ids[0]}{others} has not ended within {seconds or 0:g} s{state}. `holdfast why ID` says why."
    )


def _failure(end: End) -> HoldfastError | None:
    """What to raise for a job that has no result."""
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
