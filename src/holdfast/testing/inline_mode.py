"""Inline mode: a job has run when the call that enqueued it returns.

Nothing is faked. The job is stored and committed, and a worker claims it, runs it and reports on it before
`enqueue` returns. So its state is the same as in production, including retries.

    enqueue ─► in a handler that runs inline? ─ yes ─► the worker of that handler runs it
                       │ no
                       ├─ in an open transaction ─► it does not run, because it exists only after the commit
                       └─► drain ─► if a handler failed: HandlerFailed
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from holdfast.client import Holdfast
from holdfast.database import in_transaction
from holdfast.database.statements import aconnection_of, connection_of
from holdfast.operations.job import Job
from holdfast.operations.run_steps import Steps, arun_steps, run_steps
from holdfast.operations.snapshots import find_job, list_jobs
from holdfast.testing.draining import ALL, draining, refuse_in_a_loop
from holdfast.testing.worker_run import HandlerError, WorkerRun
from holdfast.values.job import JobSnapshot, JobState, NewJob


class HandlerFailed(AssertionError):  # noqa: N818 - like the errors of Holdfast, it says what went wrong
    """A job that ran inline has failed. `__cause__` is its exception, and `job` is the job afterwards.

    It is an `AssertionError`, because in production no enqueue raises a handler's exception. Code under test
    that catches a `ValueError` or a `HoldfastError` there must not catch this one.
    """

    def __init__(self, message: str, job: JobSnapshot) -> None:
        super().__init__(message)
        self.job = job


@contextlib.contextmanager
def inline(holdfast: Holdfast) -> Iterator[None]:
    """Run each due job as soon as it is enqueued in the block, and the jobs that it enqueues.

    If one of them fails, the call that enqueued raises `HandlerFailed`.
    """
    mode = _Inline(holdfast)
    methods, before = mode.methods(), dict(vars(holdfast))
    vars(holdfast).update(methods)
    try:
        yield
    finally:
        for name in methods:
            if name in before:
                vars(holdfast)[name] = before[name]
            else:
                del vars(holdfast)[name]


class _Inline:
    def __init__(self, holdfast: Holdfast, conn: Any = None) -> None:
        self._holdfast = holdfast
        self._client = holdfast if conn is None else Holdfast.on(holdfast, conn)
        self._conn = conn
        # Of all calls, because the worker of one call may run the jobs of another.
        self._failures: dict[str, HandlerError] = {}
        self._key = id(self)

    def methods(self) -> dict[str, Callable[..., Any]]:
        """Return the methods that replace those of the client."""
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
        if self._jobs_of_this_call() is None:
            refuse_in_a_loop(f"inline, {what}()", instead)

    def _run(self, jobs: Sequence[Job[Any]]) -> None:
        if self._leave_to_handler(jobs) or (
            self._conn is not None and in_transaction(connection_of(self._conn))
        ):
            return
        with self._running(jobs) as job_ids:
            run_steps(self._steps(job_ids), self._holdfast.carrier)

    async def _arun(self, jobs: Sequence[Job[Any]]) -> None:
        if self._leave_to_handler(jobs) or (
            self._conn is not None and in_transaction(aconnection_of(self._conn))
        ):
            return
        with self._running(jobs) as job_ids:
            await arun_steps(self._steps(job_ids), self._holdfast.carrier)

    def _leave_to_handler(self, jobs: Sequence[Job[Any]]) -> bool:
        """Leave the jobs of a handler to its worker. Return whether there is such a handler."""
        job_ids = self._jobs_of_this_call()
        if job_ids is not None:
            job_ids += [job.id for job in jobs]
        return job_ids is not None

    def _jobs_of_this_call(self) -> list[UUID] | None:
        return _jobs_of_calls.get({}).get(self._key)

    @contextlib.contextmanager
    def _running(self, jobs: Sequence[Job[Any]]) -> Iterator[list[UUID]]:
        job_ids = [job.id for job in jobs]
        token = _jobs_of_calls.set({**_jobs_of_calls.get({}), self._key: job_ids})
        try:
            yield job_ids
        finally:
            _jobs_of_calls.reset(token)

    def _steps(self, job_ids: list[UUID]) -> Steps[None]:
        worker_run = WorkerRun(failures=self._failures)
        yield from draining(self._holdfast, {}, worker_run)
        while (yield from _are_held(job_ids)):  # by the worker of another call
            yield from draining(self._holdfast, {}, worker_run)
        failed = [job_id for job_id in job_ids if str(job_id) in self._failures]
        if not failed:
            return
        failures = [self._failures.pop(str(job_id)) for job_id in failed]
        job = yield find_job(failed[0])
        text, error = failures[0]
        more = f", and {len(failed) - 1} more failed" if len(failed) > 1 else ""
        raise HandlerFailed(
            f"{job.task} ran inline and failed: {text}; it is {job.state.value}{more}", job
        ) from error


# The jobs of the current call, by the id of the inline mode. Handlers inherit it.
_jobs_of_calls: ContextVar[dict[int, list[UUID]]] = ContextVar("holdfast_inline")


def _are_held(ids: Sequence[UUID]) -> Steps[bool]:
    for state in (JobState.CLAIMED, JobState.RUNNING):
        if {job.id for job in (yield list_jobs(state=state, amount=ALL))} & set(ids):
            return True
    return False
