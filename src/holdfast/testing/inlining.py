"""Inline mode: a job is done when the call that enqueued it returns.

Nothing is faked. The job is stored and committed, and a worker claims it, runs it and reports on it before
`enqueue` returns. So its state is the same as in production, including retries.

    enqueue ─► in a handler that runs inline? ─ yes ─► the worker of that handler will find it
                       │ no
                       ├─ on a connection whose transaction is open ─► runs only after its commit: left alone
                       └─► drain ─► one of them raised? HandlerFailed
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from holdfast.client import Holdfast
from holdfast.database import in_transaction
from holdfast.database.statements import aowner_of, owner_of
from holdfast.operations.job import Job
from holdfast.operations.snapshots import find_job, list_jobs
from holdfast.testing.draining import ALL, draining
from holdfast.testing.stage import HandlerError, Stage
from holdfast.testing.steps import Steps, acarry, carry, refuse_in_a_loop
from holdfast.values.job import JobSnapshot, JobState, NewJob


class HandlerFailed(AssertionError):  # noqa: N818 - as the errors of Holdfast, it says what went wrong
    """A job that ran inline has raised; `__cause__` is its exception, `job` the job afterwards.

    It is an `AssertionError`, because in production no enqueue raises a handler's exception. Code under test
    that catches a `ValueError` or a `HoldfastError` there must not catch this.
    """

    def __init__(self, message: str, job: JobSnapshot) -> None:
        super().__init__(message)
        self.job = job


@contextlib.contextmanager
def inline(holdfast: Holdfast) -> Iterator[None]:
    """Run every due job at once that is enqueued in the block, and the jobs that it enqueues.

    Raises `HandlerFailed` from the call that enqueued, if one of them raised.
    """
    mode = _Inline(holdfast)
    ours, before = mode.methods(), dict(vars(holdfast))
    vars(holdfast).update(ours)
    try:
        yield
    finally:
        for name in ours:
            if name in before:
                vars(holdfast)[name] = before[name]
            else:
                del vars(holdfast)[name]


class _Inline:
    def __init__(self, holdfast: Holdfast, conn: Any = None) -> None:
        self._holdfast = holdfast
        self._client = holdfast if conn is None else Holdfast.on(holdfast, conn)
        self._conn = conn
        # Of all calls: the worker of one may run the jobs of another.
        self._failures: dict[str, HandlerError] = {}
        self._key = id(self)

    def methods(self) -> dict[str, Callable[..., Any]]:
        """Return the methods that take the places of those of the client."""
        return {
            "enqueue": self.enqueue,
            "aenqueue": self.aenqueue,
            "enqueue_many": self.enqueue_many,
            "aenqueue_many": self.aenqueue_many,
            "on": self.on,
        }

    def on(self, conn: Any) -> Holdfast:
        """Return a client on the caller's connection that runs jobs inline, too."""
        mode = _Inline(self._holdfast, conn)
        mode._failures, mode._key = self._failures, self._key
        client = Holdfast.on(self._holdfast, conn)
        vars(client).update(mode.methods())
        return client

    def enqueue(self, task: str | NewJob, *payload: Any, **options: Any) -> Job[Any]:
        self._refuse_in_a_loop("enqueue", "await aenqueue(…)")
        job = Holdfast.enqueue(self._client, task, *payload, **options)
        self._run([job])
        return job

    def enqueue_many(self, jobs: Iterable[NewJob]) -> list[Job[Any]]:
        self._refuse_in_a_loop("enqueue_many", "await aenqueue_many(…)")
        enqueued = Holdfast.enqueue_many(self._client, jobs)
        self._run(enqueued)
        return enqueued

    async def aenqueue(self, task: str | NewJob, *payload: Any, **options: Any) -> Job[Any]:
        job = await Holdfast.aenqueue(self._client, task, *payload, **options)
        await self._arun([job])
        return job

    async def aenqueue_many(self, jobs: Iterable[NewJob]) -> list[Job[Any]]:
        enqueued = await Holdfast.aenqueue_many(self._client, jobs)
        await self._arun(enqueued)
        return enqueued

    def _refuse_in_a_loop(self, what: str, instead: str) -> None:
        if self._family() is None:
            refuse_in_a_loop(f"inline, {what}()", instead)

    def _run(self, jobs: Sequence[Job[Any]]) -> None:
        if self._left_alone(jobs) or (self._conn is not None and in_transaction(owner_of(self._conn))):
            return
        with self._running(jobs) as family:
            carry(self._holdfast, self._steps(family))

    async def _arun(self, jobs: Sequence[Job[Any]]) -> None:
        if self._left_alone(jobs) or (self._conn is not None and in_transaction(aowner_of(self._conn))):
            return
        with self._running(jobs) as family:
            await acarry(self._holdfast, self._steps(family))

    def _left_alone(self, jobs: Sequence[Job[Any]]) -> bool:
        """Return whether these jobs come from a handler, whose worker drains the queue."""
        family = self._family()
        if family is not None:
            family += [job.id for job in jobs]
        return family is not None

    def _family(self) -> list[UUID] | None:
        return _families.get({}).get(self._key)

    @contextlib.contextmanager
    def _running(self, jobs: Sequence[Job[Any]]) -> Iterator[list[UUID]]:
        family = [job.id for job in jobs]
        token = _families.set({**_families.get({}), self._key: family})
        try:
            yield family
        finally:
            _families.reset(token)

    def _steps(self, family: list[UUID]) -> Steps[None]:
        stage = Stage(failures=self._failures)
        yield from draining({}, stage)
        while (yield from _held(family)):  # by the worker of another call
            yield from draining({}, stage)
        failed = [job_id for job_id in family if str(job_id) in self._failures]
        if not failed:
            return
        failures = [self._failures.pop(str(job_id)) for job_id in failed]
        job = yield find_job(failed[0])
        text, error = failures[0]
        more = f", and {len(failed) - 1} more failed" if len(failed) > 1 else ""
        raise HandlerFailed(
            f"{job.task} ran inline and failed: {text}; it is {job.state.value}{more}", job
        ) from error


# The jobs of the current call, by the mode that runs them. Handlers inherit it.
_families: ContextVar[dict[int, list[UUID]]] = ContextVar("holdfast_inline")


def _held(ids: Sequence[UUID]) -> Steps[bool]:
    for state in (JobState.CLAIMED, JobState.RUNNING):
        if {job.id for job in (yield list_jobs(state=state, amount=ALL))} & set(ids):
            return True
    return False
