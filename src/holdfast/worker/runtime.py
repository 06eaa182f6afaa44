"""Run a worker, from its registration until it has deregistered.

    claimer ─► buffer ─► N slots (each: take, run, hand over) ─► finisher
       ▲ wake: notify, poll, slot freed, next due     keeper: heartbeat, starts, progress, lost leases

A worker that was declared lost drops its jobs and registers again. To stop, a worker first ends everything
that brings in work, then its slots, then its finisher. Then it deregisters.
"""

import asyncio
import contextlib
import math
import os
import platform
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Any

from holdfast.database import DUTY_SETTINGS, Database, Outage, Session
from holdfast.operations import workers
from holdfast.operations.claiming import Claimed, Report
from holdfast.task import Registry
from holdfast.telemetry import Counted, emit
from holdfast.values.errors import DatabaseUnavailable, HoldfastError, NotReady, WorkerLost
from holdfast.values.job import Cancel, Released
from holdfast.worker.claimer import Claimer
from holdfast.worker.duties import CLEANUP_DELAY, SCHEDULES_CHANGED, SECONDS, STARTUP_SECONDS, Duties
from holdfast.worker.executor import Executor
from holdfast.worker.finisher import Finisher, Settled
from holdfast.worker.held import HeldJobs, Running
from holdfast.worker.keeper import Keeper
from holdfast.worker.loop import every
from holdfast.worker.millisecond_timer import MillisecondTimer
from holdfast.worker.monitor.health import Condition
from holdfast.worker.monitor.http import Address
from holdfast.worker.slots import Slots

_VERSION = version("holdfast")
DEREGISTER_SECONDS = 10.0
STOP_NOW_SECONDS = 1.0
# The deadline of one call lies between these. A silent database costs a worker at most its lease, and an
# overloaded database gets at least 3 seconds.
DEADLINES = (3.0, 30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    queues: list[str] | None
    concurrency: int
    lease_time: timedelta
    poll_interval: float
    grace: float
    notify: bool
    name: str | None
    http: Address | None = None
    max_isolated: int | None = None


class Runtime:
    def __init__(self, database: Database, registry: Registry, options: WorkerOptions) -> None:
        self._database = database
        self._registry = registry
        self._options = options
        self._lease_time = options.lease_time.total_seconds()
        self._id = ""
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._lost = asyncio.Event()
        self._held = HeldJobs()
        deadline = min(max(self._lease_time, DEADLINES[0]), DEADLINES[1])
        self._outage = Outage()
        # A claim need not wait for the disk: if it is lost in a crash, its jobs are claimed again.
        claiming = ("application_name", "holdfast claimer"), ("synchronous_commit", "off")
        if options.notify:
            self._claim_session = database.listening_session(
                *claiming,
                deadline=deadline,
                channels=[workers.channel(queue) for queue in options.queues or ["*"]],
                heard=self._notified,
                lost=self._listener_lost,
                outage=self._outage,
            )
        else:
            self._claim_session = database.session(*claiming, deadline=deadline, outage=self._outage)
        self._finish_session = database.session(
            ("application_name", "holdfast finisher"),
            # Shorter than deadlock_timeout: in a deadlock the reports give way, not the other transaction.
            ("lock_timeout", "500ms"),
            deadline=deadline,
            outage=self._outage,
        )
        self._duty_session = database.session(
            ("application_name", "holdfast duties"),
            ("lock_timeout", "2s"),
            ("synchronous_commit", "off"),
            *DUTY_SETTINGS,
            deadline=deadline,
            outage=self._outage,
            warned=_duty_failed,
        )
        # A handler may hold one connection in its own transaction and use another one meanwhile. The
        # application's pool may be exhausted, so handlers have their own.
        self._handler_pools = Database(
            database.dsn, transaction_pooling=database.transaction_pooling, pool_size=2 * options.concurrency
        )
        self._executor = self._new_executor()
        self._finisher = Finisher(self._finish_session, self._reports_written)
        self._claimer = Claimer(
            self._claim_session,
            self._held,
            queues=options.queues,
            tasks=registry.names(),
            concurrency=options.concurrency,
            poll_interval=options.poll_interval,
            listens=options.notify,
            give_back=self._give_back,
            claimed=self._jobs_claimed,
        )
        self._millisecond_timer = MillisecondTimer(self._held)
        self._slots = Slots(self._held, self._executor, done=self._finisher.add, freed=self._claimer.freed)
        self._duties = Duties(
            self._duty_session,
            lease_time=self._lease_time,
            due=self._claimer.hint,
            expects_urgent=self._claimer.expects_urgent,
        )
        self._keeper: Keeper | None = None
        self._last_error: str | None = None
        # For a drain: whether any job was reported since the last check, and whether any of them runs again.
        self._reported = self._retry_reported = False

    def _new_executor(self) -> Executor:
        record = self._finish_session.run
        return Executor(self._registry, self._handler_pools, record, self._options.max_isolated)

    def stop(self) -> None:
        (self._stop_now if self._stop.is_set() else self._stop).set()

    def condition(self) -> Condition:
        """Return the worker's state. May be called from any thread."""
        options, held = self._options, self._held
        running = Counter((it.job.queue, it.job.task) for it in list(held.running))
        beating = None if self._keeper is None else self._keeper.last_error
        return Condition(
            worker=self._id,
            name=options.name,
            version=_VERSION,
            lost=self._lost.is_set(),
            stopping=self._stop.is_set() or held.closed,
            lease_time=self._lease_time,
            lease_valid_until=held.lease_valid_until,
            last_error=self._last_error or beating,
            concurrency=options.concurrency,
            buffered=len(held.buffer),
            unwritten=max(held.unwritten, 0),
            running=running,
        )

    @property
    def stuck(self) -> bool:
        """Return whether any handlers ignore their cancellation."""
        return bool(self._held.running)

    async def run(self, *, drain: bool) -> None:
        try:
            async with _connecting(self._claim_session, self._finish_session):
                await self._register()
            if drain:
                # Before the first claim, which may otherwise find no jobs and end the drain.
                await self._promote_due()
            async with asyncio.TaskGroup() as group:
                writing = group.create_task(self._finisher.run())
                self._slots.open(self._options.concurrency)
                try:
                    async with self._background(group, drain=drain):
                        await self._wait_for_stop(drain=drain)
                except asyncio.CancelledError:
                    self._stop_now.set()
                    raise
                finally:
                    await self._finish_work()
                    writing.cancel()
        finally:
            await self._shut_down()

    # Registration.

    async def _register(self) -> None:
        options, begun = self._options, time.monotonic()
        call = workers.register(
            name=options.name,
            queues=options.queues,
            tasks=self._registry.names(),
            lease_time=options.lease_time,
            host=platform.node(),
            pid=os.getpid(),
            version=_VERSION,
        )
        self._id = await self._duty_session.run(call)
        self._outage.name_worker(self._id)
        self._held.lease_valid_until = begun + self._lease_time
        self._claimer.start_over(self._id)
        self._keeper = Keeper(
            self._database,
            self._held,
            self._id,
            lease_time=self._lease_time,
            lost=self._declared_lost,
            lost_jobs=self._stop_lost_jobs,
            cancelled=self._cancel_jobs,
            released=self._jobs_released,
            outage=self._outage,
        )
        self._keeper.start()
        emit(
            "worker.started",
            worker=self._id,
            queues=options.queues or "all",
            concurrency=options.concurrency,
            loop=type(asyncio.get_running_loop()).__module__.partition(".")[0],
        )

    def _declared_lost(self, error: WorkerLost) -> None:
        late = str(error.worker) != self._id  # a message about an earlier registration
        if not late and not self._lost.is_set():
            emit("worker.lost", worker=self._id, error=error)
            self._lost.set()

    async def _register_again(self) -> float:
        """Drop all jobs after the worker was declared lost, and register under a new id."""
        await self._lost.wait()
        self._held.drop_all()
        if self._keeper is not None:
            await self._keeper.stop()
        await self._register()
        self._lost.clear()
        self._claimer.hint()
        return 0.0

    def _stop_lost_jobs(self, lost: list[Running]) -> None:
        for running in lost:
            # A job that has ended in the meantime was reported, not lost, and its slot runs another job.
            if running in self._held.running and not running.completed_by_handler:
                emit("lease.lost", job=running.job.id, task=running.job.task)
                running.stop("lost")

    def _jobs_released(self, done: list[Report], left: list[Report], seconds: float) -> None:
        """Take over the jobs that the keeper has released while the loop was blocked."""
        if done:
            self._reports_written(Settled(done, (), seconds))
        for report in left:
            self._finisher.add(report)

    def _cancel_jobs(self, cancelled: dict[str, str]) -> None:
        for job in self._held.take_cancelled(cancelled):
            self._finisher.add(self._executor.report(job, Cancel("cancelled before it started")))
        for running in list(self._held.running):
            if cancelled.get(running.job.id) == running.job.lease:
                running.cancel()

    # Work.

    @contextlib.asynccontextmanager
    async def _background(self, group: asyncio.TaskGroup, *, drain: bool) -> AsyncIterator[None]:
        """Run every loop that brings in work. They end before the running jobs do."""
        duties = self._duties
        first, later = (0.0, 0.0) if drain else (STARTUP_SECONDS, CLEANUP_DELAY)
        steps = [
            every(1.0, self._claim, name="claimer", wake=self._claimer.wake),
            every(SECONDS["fire"], duties.fire, name="fire", wake=duties.fire_now),
            every(SECONDS["promote"], duties.promote, name="promote", wake=duties.promote_now),
            every(duties.recover_seconds, duties.recover, name="recover", first=first),
            every(SECONDS["advance"], duties.advance, name="advance", wake=duties.advance_now, first=first),
            every(SECONDS["fold_stats"], duties.fold_stats, name="fold_stats", first=first),
            every(SECONDS["upkeep"], duties.upkeep, name="upkeep", first=later),
            every(SECONDS["sweep"], duties.sweep, name="sweep", first=later),
            every(0.0, self._register_again, name="register"),
        ]
        tasks = [group.create_task(step) for step in steps]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _claim(self) -> float:
        try:
            pause = await self._claimer.step()
            self._millisecond_timer.adjust(self._claimer.pace)
            self._last_error = None
            return pause  # noqa: TRY300 - the handlers below are for step() alone
        except NotReady as error:
            self._last_error = error.message
            raise
        except WorkerLost as error:
            # The keeper notices it too, and may already have registered again.
            self._declared_lost(error)
            return 0.1

    def _notified(self, payloads: set[bytes]) -> None:
        self._claimer.hint()
        self._duties.notified()
        if SCHEDULES_CHANGED in payloads:
            self._duties.fire_now.set()

    def _listener_lost(self, error: DatabaseUnavailable) -> None:
        self._claimer.forget_sleep()
        emit("listener.lost", worker=self._id, error=error)

    def _jobs_claimed(self, jobs: int) -> None:
        self._duties.claimed(jobs)

    def _reports_written(self, settled: Settled) -> None:
        reports, refused, seconds = settled
        jobs = self._held.remove_reported(reports)
        self._reported = True
        for job, report in zip(jobs, reports, strict=True):
            if job is not None and job.suspect:
                self._claimer.hint()  # suspects are handed out one at a time
            if report.outcome in {"failed", "snoozed"}:
                self._duties.promote_now.set()  # it may be due again soon
                self._retry_reported = True
        emit(
            "jobs.finished",
            worker=self._id,
            jobs=Counted(jobs),
            reports=Counted(reports),
            refused=Counted(refused),
            seconds=seconds,
        )

    def _give_back(self, job: Claimed) -> None:
        self._finisher.add(self._executor.report(job, Released()))

    # Stopping.

    async def _wait_for_stop(self, *, drain: bool) -> None:
        waits: set[asyncio.Task[Any]] = {asyncio.create_task(self._stop.wait())}
        if drain:
            waits.add(asyncio.create_task(self._wait_until_drained()))
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()  # an error must not look like the end of a drain
        finally:
            for one in waits:
                one.cancel()

    async def _wait_until_drained(self) -> None:
        while True:
            await self._claimer.idle.wait()
            while not self._held.is_empty():
                self._held.changed.clear()
                await self._held.changed.wait()
            if not self._reported:
                return
            # Those jobs may have enqueued others, been given back, or be due for a retry at once.
            self._reported = False
            if self._retry_reported:
                self._retry_reported = False
                await self._promote_due()
            self._claimer.idle.clear()
            self._claimer.hint()

    async def _promote_due(self) -> None:
        """Promote the jobs that are due, because a drain runs them too."""
        try:
            await self._duties.promote_all(self._stop)
        except NotReady:
            self._reported = self._retry_reported = True  # try again when the database is back
        except HoldfastError:
            pass  # the duty tries again, and reports the error

    async def _finish_work(self) -> None:
        unstarted, grace_ends = self._held.close(), time.monotonic() + self._options.grace
        emit(
            "worker.stopping",
            worker=self._id,
            buffered=len(unstarted),
            running=len(self._held.running),
            grace=self._options.grace,
        )
        for job in unstarted:
            self._give_back(job)
        self._executor.processes.refuse()
        await self._slots.finish(grace=self._options.grace, stop_now=self._stop_now)
        await self._wait_for_reports(grace_ends)

    async def _wait_for_reports(self, grace_ends: float = 0.0) -> None:
        """Wait for the reports to be written, until the grace has passed but at least for a few seconds."""
        stopping_now = asyncio.create_task(self._stop_now.wait())
        idle = asyncio.create_task(self._finisher.idle())
        try:
            patience = max(grace_ends - time.monotonic(), DEREGISTER_SECONDS)
            await asyncio.wait({idle, stopping_now}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if self._stop_now.is_set():
                await asyncio.wait({idle}, timeout=STOP_NOW_SECONDS)
        finally:
            stopping_now.cancel()
            idle.cancel()

    @property
    def _deregister_timeout(self) -> float:
        return STOP_NOW_SECONDS if self._stop_now.is_set() else DEREGISTER_SECONDS

    async def _shut_down(self) -> None:
        self._millisecond_timer.stop()
        if self._keeper is not None:
            await self._keeper.stop()
            await self._deregister()
        for session in (self._claim_session, self._finish_session, self._duty_session):
            await session.close()
        self._handler_pools.close()
        await self._executor.processes.close()
        self._executor.threads.close()
        abandoned = len(self._held.running) + self._executor.threads.busy
        if abandoned:
            emit("worker.abandoned", worker=self._id, handlers=abandoned)
        emit("worker.stopped", worker=self._id)

    async def _deregister(self) -> None:
        try:
            if self._held.claim_doubted_at > -math.inf:
                # A claim that was interrupted may have taken jobs, and none of them has begun. Suspects are
                # given back too, although their claim has recorded a start.
                held, ever = list(self._held.jobs), datetime.max.replace(tzinfo=UTC)
                disown = workers.disown(self._id, held, [], before=ever)
                await self._duty_session.run(disown, deadline=self._deregister_timeout)
            await self._duty_session.run(workers.leave(self._id), deadline=self._deregister_timeout)
        except Exception as error:  # noqa: BLE001 - other workers notice when the lease has expired
            emit("leave.failed", worker=self._id, error=error)


def _duty_failed(warning: str) -> None:
    """Emit the warning of a duty that has skipped a failing part."""
    if warning.startswith("duty "):
        emit("duty.failed", error=warning)


@contextlib.asynccontextmanager
async def _connecting(*sessions: Session) -> AsyncIterator[None]:
    """Connect these sessions while the block runs. If that fails, their first call raises the error."""
    opened = asyncio.gather(*(session.open() for session in sessions), return_exceptions=True)
    try:
        yield
        await opened
    except BaseException:
        opened.cancel()
        await asyncio.wait({opened})
        raise
