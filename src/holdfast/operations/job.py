"""A handle on one job: its id, and the operations of `hf.jobs` and `hf.dead` with that id filled in."""

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar
from uuid import UUID

from holdfast.operations.base import Namespace, operation, stream, twin
from holdfast.operations.dead import Dead
from holdfast.operations.events import Event, reading
from holdfast.operations.jobs import Jobs
from holdfast.operations.results import gathering
from holdfast.operations.run_steps import Carrier, Page, Steps, Stream, sleep_for
from holdfast.operations.snapshots import get_job
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

    @operation
    def result(self, timeout: timedelta | float | None = None) -> Steps[R_co]:
        """Wait for the end of the job, and return the result of its handler.

        Raises `JobFailed` if it is dead, `JobCancelled` if it was cancelled, `JobNotFound` if there is no
        such job, and `TimeoutError` if it has not ended within this many seconds.
        """
        result: R_co
        (result,) = yield from gathering(self.holdfast, [self], timeout, return_exceptions=False)
        return result

    aresult = twin(result)

    @stream
    def watch(self, *, poll: float = 0.5) -> Stream[JobSnapshot]:
        """Yield the current state of the job, and again after each change, until it has ended."""
        last: JobSnapshot | None = None
        while last is None or not last.state.final:
            snapshot = yield get_job(self.id)
            if snapshot != last:
                yield Page([snapshot])
            last = snapshot
            if not snapshot.state.final:
                yield sleep_for(limits.number("poll", poll, 0.01, 3600))

    awatch = twin(watch)

    @stream
    def events(self, *, after: str | None = None, follow: bool = True, poll: float = 0.5) -> Stream[Event]:
        """Yield the past and new events of the job until it has ended. See `hf.events.read`."""
        return reading(job_id=self.id, queue=None, after=after, follow=follow, poll=poll)

    aevents = twin(events)

    def __repr__(self) -> str:
        return f"<job {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)
