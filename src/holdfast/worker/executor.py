"""Runs one job: a claimed job in, a report out. It touches no database.

decode ─► call the handler ─► normalise what it returned ─► encode ─► Report
   └───────────── whatever is raised on the way ─► Failed ──────────────┘
"""

import asyncio
import time
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any, assert_never

from holdfast.calls import Claimed, Report
from holdfast.errors import BadResult
from holdfast.events import emit
from holdfast.job import Cancel, Done, Failed, Interrupted, Outcome, Released, Retry, Snooze, Stop
from holdfast.secret import scrub
from holdfast.task import Registry, Task
from holdfast.worker.context import Context
from holdfast.worker.failure import ERROR_LENGTH, clean, failure, secrets_of
from holdfast.worker.hands import Running
from holdfast.worker.threads import Threads

# As large as the largest payload. PostgreSQL's own limit would break the connection, at 1 GiB.
RESULT_LIMIT = 64 * 1024 * 1024


class Executor:
    """Handlers, called: async ones on the loop, plain functions in threads."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.threads = Threads()

    async def run(self, running: Running) -> Report:
        job = running.job
        outcome: Outcome
        try:
            task = self._registry.get(job.task)
            arguments = task.decode(job.payload)
            if task.context is not None:
                arguments[task.context] = running.context = Context(job)
            try:
                if not task.is_async:
                    value = await self.threads.run(task.function, arguments)
                elif task.settings.timeout is None:
                    value = await task.function(**arguments)
                else:
                    value = await _within(task.settings.timeout, task.function(**arguments))
            except Stop as stop:
                value = stop.outcome
            if value is None:
                # What most handlers return: nothing is to be told apart, nor encoded.
                return Report(job.id, job.lease, "completed", seconds=time.monotonic() - running.begun)
            outcome = _outcome(task, value)
        except GeneratorExit:
            raise
        except asyncio.CancelledError as error:
            if running.verdict is not None or running.slot.cancelling():
                raise
            outcome = self._failed(job, error)  # the handler cancelled itself, by whatever way
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its job's failure
            outcome = self._failed(job, error)
        return self.report(job, outcome, seconds=time.monotonic() - running.begun)

    def report(self, job: Claimed, outcome: Outcome, *, seconds: float | None = None) -> Report:
        """The outcome as the database is told; a result has been encoded already."""
        match outcome:
            case Done(result):
                return Report(job.id, job.lease, "completed", result=result, seconds=seconds)
            case Failed(error, _, trace):
                return Report(job.id, job.lease, "failed", error=error, traceback=trace, seconds=seconds)
            case Retry(after, error):
                text = self._shown(job, error or "the handler asked for a retry")
                return Report(job.id, job.lease, "failed", error=text, delay=after, seconds=seconds)
            case Snooze(delay):
                return Report(job.id, job.lease, "snoozed", delay=delay, seconds=seconds)
            case Cancel(reason):
                why = self._shown(job, reason) if reason else None
                return Report(job.id, job.lease, "cancelled", error=why, seconds=seconds)
            case Released():
                return Report(job.id, job.lease, "released")
            case Interrupted(reason):
                return Report(job.id, job.lease, "interrupted", error=reason, seconds=seconds)
            case _:
                assert_never(outcome)

    def _failed(self, job: Claimed, error: BaseException) -> Failed:
        outcome = failure(error, secrets_of(job, self._registry))
        emit("job.failed", job=job.id, task=job.task, attempt=job.attempt, error=outcome.error)
        return outcome

    def _shown(self, job: Claimed, text: str) -> str:
        return clean(scrub(str(text), secrets_of(job, self._registry)), ERROR_LENGTH)


async def _within(limit: timedelta, handler: Awaitable[Any]) -> Any:
    seconds = limit.total_seconds()
    try:
        async with asyncio.timeout(seconds) as deadline:
            return await handler
    except TimeoutError as error:
        if deadline.expired():
            raise TimeoutError(f"the handler ran longer than its timeout of {seconds:g} s") from error
        raise


def _outcome(task: Task[..., Any], value: Any) -> Outcome:
    """What a handler returned: an outcome, or a plain value, which is the result of a job well done."""
    match value:
        case Retry() | Snooze() | Cancel():
            return value
        case Done(result):
            return Done(_encoded(task, result))
        case _:
            return Done(_encoded(task, value))


def _encoded(task: Task[..., Any], value: Any) -> str | None:
    text = task.encode_result(value)
    if text is not None and len(text) > RESULT_LIMIT:
        raise BadResult(
            f"{task.name}: the handler's result has {len(text):,} characters of JSON",
            hint=f"At most {RESULT_LIMIT:,} can be stored; store it elsewhere and return where it is.",
            task=task.name,
        )
    return text
