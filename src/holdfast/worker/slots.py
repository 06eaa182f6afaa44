"""N slots: coroutines that take a job from the buffer, await its handler and hand over the report.

There is no asyncio task per job. A slot survives everything that its handler does, except its own
cancellation. If a handler leaves something behind in the slot's context variables, a new slot replaces it.
"""

import asyncio
import contextvars
import time

from holdfast.operations.claiming import Report
from holdfast.telemetry import emit
from holdfast.values.job import CANCELLED_WHILE_RUNNING, Cancel, Failed, Interrupted
from holdfast.worker.executor import Executor
from holdfast.worker.held import HeldJobs, Running

# How many jobs a slot may run before it lets the others run.
JOBS_PER_TURN = 8
# How long an async handler may clean up after it was interrupted.
CLEAN_UP_SECONDS = 5.0
STOP_NOW_SECONDS = 0.1


class Slots:
    def __init__(self, held: HeldJobs, executor: Executor) -> None:
        self._held = held
        self._executor = executor
        self._run = executor.instrumented()
        self._tasks: set[asyncio.Task[None]] = set()
        self._context = contextvars.copy_context()

    def open(self, amount: int) -> None:
        for _ in range(amount):
            self._open()

    async def finish(self, *, grace: float, stop_now: asyncio.Event) -> None:
        """Let running jobs finish within the grace, and interrupt the rest. Close the buffer before."""
        stopping_now = asyncio.create_task(stop_now.wait())
        ended = asyncio.create_task(asyncio.wait(self._tasks))
        try:
            await asyncio.wait({ended, stopping_now}, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
            for running in list(self._held.running):
                running.stop("interrupted")
            await asyncio.wait({ended}, timeout=STOP_NOW_SECONDS if stop_now.is_set() else CLEAN_UP_SECONDS)
        finally:
            stopping_now.cancel()
            ended.cancel()
            self._abandon()

    def _abandon(self) -> None:
        """Report the jobs that could not be stopped. Their later results are ignored."""
        for running in list(self._held.running):
            if running.stop_reason != "lost":
                self._held.report(self._executor.report(running.job, Interrupted()))
            running.stop("lost")
            running.stop_reason = "lost"
        for slot in self._tasks:
            slot.cancel()

    def _open(self) -> None:
        slot = asyncio.create_task(self._slot(), context=self._context.copy())
        self._tasks.add(slot)

    async def _slot(self) -> None:
        me = asyncio.current_task()
        assert me is not None  # noqa: S101 - a slot is always a task
        held, buffer, turns = self._held, self._held.buffer, 0
        # This loop runs every job, so constant lookups are done once.
        now, running_jobs, run, done, freed = time.monotonic, held.running, self._run, held.report, held.freed
        while True:
            begun = now()
            try:  # as in held.next(), without a coroutine for each job
                job = buffer.popleft() if begun <= held.lease_valid_until else None
            except IndexError:
                job = None
            if job is None:
                job = await held.next()
                if job is None:
                    return
                begun = now()
            running = Running(job, me, begun)
            running_jobs.add(running)
            try:
                report = await run(running)
            except BaseException as error:  # noqa: BLE001 - raised again unless it concerns the job
                report = self._stopped_report(running, error)
            finally:
                running_jobs.discard(running)
            if running.context is not None:
                report = running.context.final_report(report, running.written)
            if running.stop_reason is None:
                done(report)
            else:
                self._report_stopped(running, report)
            freed()
            if self._context_changed():
                self._replace(me)
                return
            turns += 1
            if turns % JOBS_PER_TURN == 0:
                await asyncio.sleep(0)

    def _stopped_report(self, running: Running, error: BaseException) -> Report:
        """Return the report on a job that was interrupted, or that failed because of a bug in Holdfast."""
        job = running.job
        if isinstance(error, asyncio.CancelledError) and running.stop_reason is not None:
            outcome = Cancel(CANCELLED_WHILE_RUNNING) if running.stop_reason == "cancelled" else Interrupted()
            return self._executor.report(job, outcome)
        if isinstance(error, Exception):  # a bug in Holdfast must cost neither the slot nor the job
            emit("slot.broken", job=job.id, task=job.task, error=error)
            return self._executor.report(job, Failed(f"Holdfast itself failed: {type(error).__name__}"))
        raise error

    def _report_stopped(self, running: Running, report: Report) -> None:
        """Report a job that ended after a request to stop."""
        if running.slot.cancelling():
            running.slot.uncancel()
        if running.stop_reason == "lost":
            self._held.remove_reported([report])
        else:
            self._held.report(report)

    def _context_changed(self) -> bool:
        """Return whether a handler has changed the context variables. The next handler must not see that.

        Comparing the contexts costs 0.1 µs per job, and a new slot 6 µs if one is needed. Awaiting each
        handler in its own copy of the context would cost every job 0.7 µs.
        """
        try:
            return contextvars.copy_context() != self._context
        except Exception:  # noqa: BLE001 - a value that cannot be compared counts as changed
            return True

    def _replace(self, slot: "asyncio.Task[None]") -> None:
        if not self._held.closed:
            self._tasks.discard(slot)
            self._open()
