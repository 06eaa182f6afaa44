"""The runtime of a worker in a test: a real one that keeps the errors of its handlers, and that may crash.

A crash looks to others like a real one: no report, nothing given back, no deregistration, no heartbeat. The
jobs stay claimed in its name until it is declared lost.
"""

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

from holdfast.database import Database
from holdfast.operations import attempts
from holdfast.operations.claiming import Claimed, Report
from holdfast.task import Registry
from holdfast.testing.worker_run import Crash, HandlerError, Lost, WorkerRun
from holdfast.values.job import Failed
from holdfast.worker.executor import Executor
from holdfast.worker.held import Running
from holdfast.worker.keeper import FLUSH_SECONDS
from holdfast.worker.runtime import Runtime, WorkerOptions


class ObservedRuntime(Runtime):
    def __init__(
        self, worker_run: WorkerRun, database: Database, registry: Registry, options: WorkerOptions
    ) -> None:
        self._worker_run = worker_run
        super().__init__(database, registry, options)

    def _new_executor(self) -> Executor:
        given = (self._registry, self._handler_pools, self._finish_session.run, self._options.max_isolated)
        return ObservedExecutor(self._worker_run, self._vanish, *given)

    def _vanish(self, job: Claimed) -> None:
        self._worker_run.lost = Lost(self._held.worker, self._options.lease_time, job)
        self.stop()

    async def _finish_work(self) -> None:
        if self._worker_run.lost is None:
            return await super()._finish_work()
        # Reports of earlier jobs are written first. A job that was dropped is not reported.
        self._held.close()
        await self._wait_for_reports()
        self._held.drop_all()
        self._stop_now.set()
        return await self._slots.finish(grace=0, stop_now=self._stop_now)

    async def _deregister(self) -> None:
        if self._worker_run.lost is None:
            await super()._deregister()


class ObservedExecutor(Executor):
    def __init__(self, worker_run: WorkerRun, vanish: Callable[[Claimed], None], *given: Any) -> None:
        super().__init__(*given)
        self._worker_run = worker_run
        self._vanish = vanish

    async def run(self, running: Running) -> Report:
        worker_run, job = self._worker_run, running.job
        worker_run.failures.pop(job.id, None)
        if worker_run.ends("before", job):
            await self._lose(job)
        report = await super().run(running)
        crashed = job.id in worker_run.failures and _is_crash(worker_run.failures[job.id].error)
        began = report.outcome != "released"
        if (crashed and worker_run.ends("during", job)) or (began and worker_run.ends("after", job)):
            # As if the job had run long enough for its start to be recorded. Otherwise the crash would not
            # count for this job.
            await self._run_call(attempts.start([job.id], [job.lease], [FLUSH_SECONDS]))
            await self._lose(job)
        return report

    async def _lose(self, job: Claimed) -> NoReturn:
        self._vanish(job)
        while True:  # until the slot is cancelled
            await asyncio.Event().wait()

    def _failed(self, running: Running, error: BaseException) -> Failed:
        job = running.job
        self._worker_run.failures[job.id] = HandlerError("", error)  # the text is added in _emit_failure
        if _is_crash(error) and self._worker_run.ends("during", job):
            return Failed("lost")  # never reported
        return super()._failed(running, error)

    def _emit_failure(self, running: Running, outcome: Failed) -> None:
        job = running.job
        raised = self._worker_run.failures.get(job.id)
        self._worker_run.failures[job.id] = HandlerError(outcome.error, raised and raised.error)
        super()._emit_failure(running, outcome)


def _is_crash(error: BaseException | None) -> bool:
    """Return whether this is a Crash, or a group that contains one."""
    return isinstance(error, Crash) or (
        isinstance(error, BaseExceptionGroup) and error.subgroup(Crash) is not None
    )
