"""A handle on one job."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

from holdfast import calls
from holdfast.calls import AttemptError, Call, Event, Reason, StepRow
from holdfast.task import JobHandle
from holdfast.values import limits
from holdfast.values.errors import JobNotFound
from holdfast.values.job import JobId, JobSnapshot, JobState

if TYPE_CHECKING:
    from holdfast.client.holdfast import Holdfast

R = TypeVar("R")


class Job(JobHandle[R], Generic[R]):
    """A job that was enqueued or looked up: its id, and what can be done with it."""

    __slots__ = ("_holdfast", "_id")

    def __init__(self, holdfast: "Holdfast", job_id: JobId) -> None:
        self._holdfast = holdfast
        self._id = job_id

    @property
    def id(self) -> UUID:
        known = self._id
        if not isinstance(known, UUID):  # made when it is asked for: most handles are never looked at
            known = self._id = UUID(known) if isinstance(known, str) else UUID(int=known)
        return known

    def refresh(self) -> JobSnapshot:
        """The job as it is now; raises `JobNotFound` once it is past its retention, or was rolled back."""
        return _known(self._holdfast.run(calls.job(self.id)), self.id)

    async def arefresh(self) -> JobSnapshot:
        return _known(await self._holdfast.arun(calls.job(self.id)), self.id)

    def why(self) -> list[Reason]:
        """Why it does not run, the decisive reason first; or how it ended. Knows unknown ids, too."""
        return self._holdfast.why(self.id)

    async def awhy(self) -> list[Reason]:
        return await self._holdfast.awhy(self.id)

    def cancel(self) -> str:
        """Call it off: `cancelled`, `requested` (a worker holds it), or the end state that it had already."""
        return self._holdfast.run(calls.cancel(self.id))

    async def acancel(self) -> str:
        return await self._holdfast.arun(calls.cancel(self.id))

    def run_now(self) -> JobState:
        """Do not wait for its time or its backoff; the state that it has then."""
        return JobState(self._holdfast.run(calls.run_now(self.id)))

    async def arun_now(self) -> JobState:
        return JobState(await self._holdfast.arun(calls.run_now(self.id)))

    def reschedule(
        self, *, run_at: datetime | None = None, delay: timedelta | float | None = None
    ) -> datetime:
        """Give a scheduled job another time; when it is due. Raises `IllegalTransition` for any other."""
        return self._holdfast.run(_reschedule(self.id, run_at, delay))

    async def areschedule(
        self, *, run_at: datetime | None = None, delay: timedelta | float | None = None
    ) -> datetime:
        return await self._holdfast.arun(_reschedule(self.id, run_at, delay))

    def give_up(self, reason: str | None = None) -> JobState:
        """Send it to the dead letters while it waits; raises `IllegalTransition` if it does not wait."""
        return JobState(self._holdfast.run(calls.give_up(self.id, reason)))

    async def agive_up(self, reason: str | None = None) -> JobState:
        return JobState(await self._holdfast.arun(calls.give_up(self.id, reason)))

    def replay(self, *, start_over: bool = False) -> JobState:
        """Put it back on its queue, once it is dead: the same job, with attempts from 0.

        It goes on after the steps that it has finished, unless it is to start over.
        """
        return JobState(
            self._holdfast.run(calls.replay(self.id, start_over=limits.truth("start_over", start_over)))
        )

    async def areplay(self, *, start_over: bool = False) -> JobState:
        return JobState(
            await self._holdfast.arun(
                calls.replay(self.id, start_over=limits.truth("start_over", start_over))
            )
        )

    def purge(self) -> None:
        """Remove it for good, once it is dead, with its errors."""
        self._holdfast.run(calls.purge(self.id))

    async def apurge(self) -> None:
        await self._holdfast.arun(calls.purge(self.id))

    def errors(self) -> list[AttemptError]:
        """What went wrong, attempt by attempt."""
        return self._holdfast.run(calls.job_errors(self.id))

    async def aerrors(self) -> list[AttemptError]:
        return await self._holdfast.arun(calls.job_errors(self.id))

    def steps(self) -> list[StepRow]:
        """The steps that it has finished, in their order."""
        return self._holdfast.run(calls.job_steps(self.id))

    async def asteps(self) -> list[StepRow]:
        return await self._holdfast.arun(calls.job_steps(self.id))

    def checkpoint(self) -> dict[str, Any] | None:
        """What its handler kept last with `ctx.checkpoint`."""
        return self._holdfast.run(calls.job_checkpoint(self.id))

    async def acheckpoint(self) -> dict[str, Any] | None:
        return await self._holdfast.arun(calls.job_checkpoint(self.id))

    def result(self, timeout: timedelta | float | None = None) -> R:
        """Wait for its end; what the handler returned.

        Raises `JobFailed` if it is dead, `JobCancelled` if it was called off, `JobNotFound` if there is no
        such job, and `TimeoutError` if it has not ended within so many seconds.
        """
        (result,) = self._holdfast.gather([self], timeout=timeout)
        return result  # type: ignore[no-any-return]  # as its task says, if it is known here

    async def aresult(self, timeout: timedelta | float | None = None) -> R:  # noqa: ASYNC109 - the twin of result
        (result,) = await self._holdfast.agather([self], timeout=timeout)
        return result  # type: ignore[no-any-return]

    def watch(self, *, poll: float = 0.5) -> Iterator[JobSnapshot]:
        """The job as it is now, and again whenever it has changed, until it has ended."""
        last = None
        while last is None or not last.state.final:
            snapshot = self.refresh()
            if snapshot != last:
                yield snapshot
            last = snapshot
            if not last.state.final:
                time.sleep(limits.number("poll", poll, 0.01, 3600))

    async def awatch(self, *, poll: float = 0.5) -> AsyncIterator[JobSnapshot]:
        last = None
        while last is None or not last.state.final:
            snapshot = await self.arefresh()
            if snapshot != last:
                yield snapshot
            last = snapshot
            if not last.state.final:
                await asyncio.sleep(limits.number("poll", poll, 0.01, 3600))

    def events(self, *, after: str | None = None, follow: bool = True, poll: float = 0.5) -> Iterator[Event]:
        """Its events: those that were, then those that come, until it has ended. See `hf.events`."""
        return self._holdfast.events(job_id=self.id, after=after, follow=follow, poll=poll)

    def aevents(
        self, *, after: str | None = None, follow: bool = True, poll: float = 0.5
    ) -> AsyncIterator[Event]:
        return self._holdfast.aevents(job_id=self.id, after=after, follow=follow, poll=poll)

    def __repr__(self) -> str:
        return f"<job {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)


def _replay(job_id: UUID, start_over: bool) -> Call[str]:
    return calls.replay(job_id, start_over=limits.truth("start_over", start_over))


def _reschedule(job_id: UUID, run_at: datetime | None, delay: timedelta | float | None) -> Call[datetime]:
    if (run_at is None) == (delay is None):
        raise limits.refused("run_at", run_at, "give either run_at or delay")
    return calls.reschedule(
        job_id,
        None if run_at is None else limits.moment("run_at", run_at),
        None if delay is None else limits.duration("delay", delay),
    )


def _known(snapshot: JobSnapshot | None, job_id: UUID) -> JobSnapshot:
    if snapshot is None:
        raise unknown(job_id)
    return snapshot


def unknown(job_id: UUID) -> JobNotFound:
    return JobNotFound(
        f"there is no job {job_id}",
        hint="Check the id; jobs are kept for the retention time after they finish.",
        id=job_id,
    )
