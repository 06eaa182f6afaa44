"""Runs one job: a claimed job in, a report out. It calls the database only to record starts and load memory.

decode ─► call the handler ─► make an outcome of its result ─► encode ─► Report
   └─────────────── an exception in any of these steps ─► Failed ──────┘
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Protocol, TypeVar, assert_never

from holdfast.database import Database
from holdfast.operations import attempts
from holdfast.operations.attempts import Memory
from holdfast.operations.claiming import Claimed, Report
from holdfast.task import Registry, Task
from holdfast.telemetry import emit
from holdfast.values.call import Call
from holdfast.values.errors import Collision, NotReady
from holdfast.values.job import (
    Cancel,
    Done,
    Failed,
    GiveUp,
    Interrupted,
    Outcome,
    Released,
    Retry,
    Snooze,
    Stop,
)
from holdfast.values.options import TaskOptions
from holdfast.values.secret import scrub
from holdfast.worker.context import Context
from holdfast.worker.failure import ERROR_LENGTH, failure_of, secrets_of, storable
from holdfast.worker.held import Running
from holdfast.worker.isolation.pool import ProcessPool
from holdfast.worker.outcome import outcome_of
from holdfast.worker.threads import Threads

T = TypeVar("T")

# A header of jobs whose attempts were reset: they were replayed, or did not cause a crash.
_RESUMES_HEADER = '"resumes"'
_LOCKED = "another transaction has locked the job"


class RunCall(Protocol):
    """Runs a call durably, even if the server has no connection left."""

    def __call__(self, call: Call[T]) -> Awaitable[T]: ...


class Executor:
    """Calls handlers: async ones on the loop, plain functions in threads, isolated ones in processes."""

    def __init__(
        self,
        registry: Registry,
        database: Database,
        run_call: RunCall,
        max_isolated: int | None = None,
    ) -> None:
        """At most `max_isolated` processes run, by default one per core."""
        self._registry = registry
        self._database = database
        self._run_call = run_call
        self.threads = Threads()
        self.processes = ProcessPool(database, self.threads, max_isolated)

    def instrumented(self) -> Callable[[Running], Awaitable[Report]]:
        """Return `run`, wrapped in the registry's instrumentation. Resolved once, not for every job."""
        around = self._registry.around
        if around is None:
            return self.run

        async def run(running: Running) -> Report:
            with around(running.job) as tell:
                report = await self.run(running)
                tell(report)
            return report

        return run

    async def run(self, running: Running) -> Report:  # noqa: C901, PLR0912 - a frame would slow each job
        job = running.job
        outcome: Outcome
        try:
            task = self._registry.get(job.task)
            arguments = task.arguments.decode(job.payload)
            memory: Memory | None = None
            if task.context is not None:
                arguments[task.context] = running.context = Context(job, self._database)
                if job.attempt > 1 or (job.headers is not None and _RESUMES_HEADER in job.headers):
                    memory = await self._load_memory(running.context, job)
                    if memory is None:
                        return self.report(job, Released())
            if task.isolated:
                return await self._run_isolated(running, task, memory)
            if task.recorded and not await self._record_start(running, task.settings):
                return self.report(job, Released())
            try:
                if not task.is_async:
                    running.in_thread = True
                    value = await self.threads.run(task.function, arguments)
                elif task.settings.timeout is None:
                    value = await task.function(**arguments)
                else:
                    value = await _with_timeout(task.settings.timeout, task.function(**arguments))
            except Stop as stop:
                value = stop.outcome
            if value is None:
                # Most handlers return None: there is nothing to tell apart or to encode.
                return Report(job.id, job.lease, "completed", seconds=time.monotonic() - running.begun)
            outcome = outcome_of(task, value)
        except GeneratorExit:
            raise
        except asyncio.CancelledError as error:
            if running.stop_reason is not None or running.slot.cancelling():
                raise
            outcome = self._failed(running, error)  # the handler cancelled itself
        except BaseException as error:  # noqa: BLE001 - any exception of a handler is its job's failure
            outcome = self._failed(running, error)
        return self._report_outcome(running, outcome)

    def _report_outcome(self, running: Running, outcome: Outcome) -> Report:
        job, seconds = running.job, time.monotonic() - running.begun
        if running.context is not None and running.context.completed:
            return Report(job.id, job.lease, "completed", seconds=seconds)  # an error after it is ignored
        return self.report(job, outcome, seconds=seconds)

    async def _load_memory(self, context: Context, job: Claimed) -> Memory | None:
        """Load the steps and the checkpoint of earlier attempts. Without them, the handler must not start."""
        try:
            memory = await self._run_call(attempts.memory(job.id))
        except NotReady as error:
            emit("start.failed", job=job.id, task=job.task, error=error)
            return None
        context.restore(memory)
        return memory

    async def _run_isolated(self, running: Running, task: Task[..., Any], memory: Memory | None) -> Report:
        """Run the job in a process as soon as one more may run."""
        running.recorded = True  # not begun yet, so the keeper must not record its start
        if not await self.processes.acquire():
            return self.report(running.job, Released())
        try:
            running.recorded, running.begun = False, time.monotonic()
            if task.recorded and not await self._record_start(running, task.settings):
                return self.report(running.job, Released())
            return self._report_outcome(running, await self._run_in_process(running, task, memory))
        finally:
            self.processes.release()

    async def _run_in_process(self, running: Running, task: Task[..., Any], memory: Memory | None) -> Outcome:
        """Run the job in a process."""
        running.context = running.context or Context(running.job)
        outcome = await self.processes.run(task, running.job, running.context, memory)
        if isinstance(outcome, Failed):
            self._emit_failure(running, outcome)
        return outcome

    async def _record_start(self, running: Running, settings: TaskOptions) -> bool:
        """Record the start, and return whether that worked: otherwise the job has not started."""
        job = running.job
        start = attempts.start_one(job.id, job.lease, timeout=settings.timeout, once=settings.at_most_once)
        try:
            unwritten = await self._run_call(start)
        except NotReady as error:
            emit("start.failed", job=job.id, task=job.task, error=error)
            return False
        if unwritten.locked:
            # Waiting would keep the slot, usually in vain: most locked jobs are being cancelled.
            emit("start.failed", job=job.id, task=job.task, error=Collision(_LOCKED))
            return False
        running.recorded, running.begun = True, time.monotonic()
        if unwritten.gone:
            emit("job.not_started", job=job.id, task=job.task)
        return not unwritten.gone

    def report(self, job: Claimed, outcome: Outcome, *, seconds: float | None = None) -> Report:
        """Return the report for an outcome. A result has been encoded already."""
        match outcome:
            case Done(result):
                return Report(job.id, job.lease, "completed", result=result, seconds=seconds)
            case Failed(error, _, trace, final):
                retry = False if final else self._retry_flag(job)
                return Report(
                    job.id, job.lease, "failed", error=error, traceback=trace, retry=retry, seconds=seconds
                )
            case GiveUp(error):
                text = self._cleaned(job, error)
                return Report(job.id, job.lease, "failed", error=text, retry=False, seconds=seconds)
            case Retry(after, error):
                text = self._cleaned(job, error or "the handler asked for a retry")
                retry = self._retry_flag(job)
                return Report(
                    job.id, job.lease, "failed", error=text, retry=retry, delay=after, seconds=seconds
                )
            case Snooze(delay):
                return Report(job.id, job.lease, "snoozed", delay=delay, seconds=seconds)
            case Cancel(reason):
                why = self._cleaned(job, reason) if reason else None
                return Report(job.id, job.lease, "cancelled", error=why, seconds=seconds)
            case Released():
                return Report(job.id, job.lease, "released")
            case Interrupted(reason):
                retry = self._retry_flag(job)
                return Report(job.id, job.lease, "interrupted", error=reason, retry=retry, seconds=seconds)
            case _:
                assert_never(outcome)

    def _retry_flag(self, job: Claimed) -> bool | None:
        """Return False for a job that must never run twice, and otherwise None: the policy decides."""
        return False if self._registry.settings(job.task).at_most_once else None

    def _failed(self, running: Running, error: BaseException) -> Failed:
        outcome = failure_of(running.job, error, self._registry)
        self._emit_failure(running, outcome)
        return outcome

    def _emit_failure(self, running: Running, outcome: Failed) -> None:
        job = running.job
        # If its own transaction has completed the job, only the handler has failed.
        event = "handler.failed" if running.completed_by_handler else "job.failed"
        # The database decides the same when it gets the report.
        dead = outcome.final or self._retry_flag(job) is False or job.attempt >= job.max_attempts
        end = {"dead": True} if dead and not running.completed_by_handler else {}
        attempts = {"attempt": job.attempt, "max_attempts": job.max_attempts}
        emit(event, job=job.id, task=job.task, **attempts, **end, error=outcome.error)

    def _cleaned(self, job: Claimed, text: str) -> str:
        return storable(scrub(str(text), secrets_of(job, self._registry)), ERROR_LENGTH)


async def _with_timeout(limit: timedelta, handler: Awaitable[Any]) -> Any:
    seconds = limit.total_seconds()
    try:
        async with asyncio.timeout(seconds) as deadline:
            return await handler
    except TimeoutError as error:
        if deadline.expired():
            raise TimeoutError(f"the handler ran longer than its timeout of {seconds:g} s") from error
        raise
