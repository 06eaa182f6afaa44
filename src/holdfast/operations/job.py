"""A handle on one job: its id, and the operations of `hf.jobs` and `hf.dead` with that id filled in."""

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar
from uuid import UUID

from holdfast.operations.base import Carrier, Namespace, Steps, operation, twin
from holdfast.operations.dead import Dead
from holdfast.operations.events import Event
from holdfast.operations.jobs import Jobs
from holdfast.values import limits
from holdfast.values.call import Call
from holdfast.values.job import JobId, JobSnapshot

if TYPE_CHECKING:
    from holdfast.client import Holdfast

N = TypeVar("N", bound=Namespace)
P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


def _with_id(
    original: operation[N, Concatenate[UUID | str, P], T], namespace: Callable[["Job[Any]"], N]
) -> operation["Job[Any]", P, T]:
    """Derive the method of a job from an operation that takes its id first."""

    def build(job: "Job[Any]", /, *args: P.args, **kwargs: P.kwargs) -> Call[T] | Steps[T]:
        return original.build(namespace(job), job.id, *args, **kwargs)

    build.__name__, build.__doc__ = original.build.__name__, original.build.__doc__
    signature = inspect.signature(original.build)
    first, _, *others = signature.parameters.values()
    build.__signature__ = signature.replace(parameters=[first, *others])  # type: ignore[attr-defined]
    return operation(build)


def _of_jobs(original: operation[Jobs, Concatenate[UUID | str, P], T]) -> operation["Job[Any]", P, T]:
    return _with_id(original, lambda job: job.holdfast.jobs)


def _of_dead(original: operation[Dead, Concatenate[UUID | str, P], T]) -> operation["Job[Any]", P, T]:
    return _with_id(original, lambda job: job.holdfast.dead)


class Job(Generic[R_co]):
    """A job that was enqueued or looked up: its id, and the operations on it."""

    __slots__ = ("_id", "holdfast")

    def __init__(self, holdfast: "Holdfast", job_id: JobId) -> None:
        self.holdfast = holdfast
        self._id = job_id

    @property
    def id(self) -> UUID:
        known = self._id
        if not isinstance(known, UUID):  # made on demand: the id of most handles is never read
            known = self._id = UUID(known) if isinstance(known, str) else UUID(int=known)
        return known

    @property
    def carrier(self) -> Carrier:
        return self.holdfast.carrier

    refresh = _of_jobs(Jobs.get)
    arefresh = twin(refresh)
    why = _of_jobs(Jobs.why)
    awhy = twin(why)
    errors = _of_jobs(Jobs.errors)
    aerrors = twin(errors)
    steps = _of_jobs(Jobs.steps)
    asteps = twin(steps)
    checkpoint = _of_jobs(Jobs.checkpoint)
    acheckpoint = twin(checkpoint)
    cancel = _of_jobs(Jobs.cancel)
    acancel = twin(cancel)
    run_now = _of_jobs(Jobs.run_now)
    arun_now = twin(run_now)
    reschedule = _of_jobs(Jobs.reschedule)
    areschedule = twin(reschedule)
    give_up = _of_jobs(Jobs.give_up)
    agive_up = twin(give_up)
    replay = _of_dead(Dead.replay)
    areplay = twin(replay)
    purge = _of_dead(Dead.purge)
    apurge = twin(purge)

    def result(self, timeout: timedelta | float | None = None) -> R_co:
        """Wait for the end of the job, and return the result of its handler.

        Raises `JobFailed` if it is dead, `JobCancelled` if it was cancelled, `JobNotFound` if there is no
        such job, and `TimeoutError` if it has not ended within this many seconds.
        """
        (result,) = self.holdfast.jobs.gather([self], timeout=timeout)
        return result

    async def aresult(self, timeout: timedelta | float | None = None) -> R_co:  # noqa: ASYNC109 - the twin of result
        """The async twin of `result`."""
        (result,) = await self.holdfast.jobs.agather([self], timeout=timeout)
        return result

    def watch(self, *, poll: float = 0.5) -> Iterator[JobSnapshot]:
        """Yield the current state of the job, and again after each change, until it has ended."""
        last = None
        while last is None or not last.state.final:
            snapshot = self.refresh()
            if snapshot != last:
                yield snapshot
            last = snapshot
            if not last.state.final:
                time.sleep(limits.number("poll", poll, 0.01, 3600))

    async def awatch(self, *, poll: float = 0.5) -> AsyncIterator[JobSnapshot]:
        """The async twin of `watch`."""
        last = None
        while last is None or not last.state.final:
            snapshot = await self.arefresh()
            if snapshot != last:
                yield snapshot
            last = snapshot
            if not last.state.final:
                await asyncio.sleep(limits.number("poll", poll, 0.01, 3600))

    def events(self, *, after: str | None = None, follow: bool = True, poll: float = 0.5) -> Iterator[Event]:
        """Yield the past and new events of the job until it has ended. See `hf.events.read`."""
        return self.holdfast.events.read(job_id=self.id, after=after, follow=follow, poll=poll)

    def aevents(
        self, *, after: str | None = None, follow: bool = True, poll: float = 0.5
    ) -> AsyncIterator[Event]:
        """The async twin of `events`."""
        return self.holdfast.events.aread(job_id=self.id, after=after, follow=follow, poll=poll)

    def __repr__(self) -> str:
        return f"<job {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)
