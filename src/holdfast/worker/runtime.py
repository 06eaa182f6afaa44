"""One run of a worker, from its first registration to its last word.

    claimer ─► buffer ─► N slots (each: take, run, hand over) ─► finisher
       ▲ wake: notify, poll, slot freed, next due     keeper: heartbeat, starts, progress, lost leases

A worker that was declared lost drops what it holds and registers anew. One that is told to stop first stops
whatever brings in work, then its slots, then its finisher, and says goodbye.
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

from holdfast import calls
from holdfast.calls import Claimed, Report
from holdfast.database import PATIENT, Database, Outage, Session
from holdfast.task import Registry
from holdfast.telemetry import Bunch, emit
from holdfast.values.errors import DatabaseUnavailable, HoldfastError, NotReady, WorkerLost
from holdfast.values.job import Cancel, Released
from holdfast.worker.claimer import Claimer
from holdfast.worker.duties import (
    ADVANCE_SECONDS,
    AT_WORK,
    PROMOTE_SECONDS,
    SETTLED_DOWN,
    SWEEP_SECONDS,
    UPKEEP_SECONDS,
    Duties,
)
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
LAST_WORDS_SECONDS = 10.0
HURRIED_SECONDS = 1.0
# For one call: a silent database costs a worker no more than its lease, nor an overloaded one less than this.
DEADLINES = (3.0, 30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
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
    def __init__(self, database: Database, registry: Registry, settings: Settings) -> None:
        self._database = database
        self._registry = registry
        self._settings = settings
        self._lease_time = settings.lease_time.total_seconds()
        self._id = ""
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._lost = asyncio.Event()
        self._held = HeldJobs()
        deadline = min(max(self._lease_time, DEADLINES[0]), DEADLINES[1])
        self._outage = Outage()
        # A lost claim is only claimed again, so a claim need not wait for the disk.
        claiming = ("application_name", "holdfast claimer"), ("synchronous_commit", "off")
        if settings.notify:
            self._claiming = database.listening_session(
                *claiming,
                deadline=deadline,
                channels=[calls.channel(queue) for queue in settings.queues or ["*"]],
                heard=self._notified,
                lost=self._deaf,
                outage=self._outage,
            )
        else:
            self._claiming = database.session(*claiming, deadline=deadline, outage=self._outage)
        self._finishing = database.session(
            ("application_name", "holdfast finisher"),
            # Shorter than deadlock_timeout: in a deadlock the reports give way, not the other transaction.
            ("lock_timeout", "500ms"),
            deadline=deadline,
            outage=self._outage,
        )
        self._serving = database.session(
            ("application_name", "holdfast duties"),
            ("lock_timeout", "2s"),
            ("synchronous_commit", "off"),
            *PATIENT,
            deadline=deadline,
            outage=self._outage,
            warned=_duty_failed,
        )
        # Each handler may have one in a transaction of its own, and one to say something meanwhile, whatever
        # others do with the application's.
        self._handler_pools = Database(
            database.dsn, transaction_pooling=database.transaction_pooling, pool_size=2 * settings.concurrency
        )
        self._executor = self._new_executor()
        self._finisher = Finisher(self._finishing, self._settled)
        self._claimer = Claimer(
            self._claiming,
            self._held,
            queues=settings.queues,
            tasks=registry.names(),
            concurrency=settings.concurrency,
            poll_interval=settings.poll_interval,
            listens=settings.notify,
            give_back=self._release,
            took=self._took,
        )
        self._millisecond_timer = MillisecondTimer(self._held)
        self._slots = Slots(self._held, self._executor, done=self._finisher.add, freed=self._claimer.freed)
        self._duties = Duties(
            self._serving, lease_time=self._lease_time, due=self._claimer.hint, alert=self._claimer.alert
        )
        self._keeper: Keeper | None = None
        self._trouble: str | None = None
        # What a drain must know: whether any job, or one that comes back, was reported since it last looked.
        self._reported = self._put_off = False

    def _new_executor(self) -> Executor:
        return Executor(self._registry, self._handler_pools, self._finishing.run, self._settings.max_isolated)

    def stop(self) -> None:
        (self._hurry if self._stop.is_set() else self._stop).set()

    def condition(self) -> Condition:
        """How it is; from any thread."""
        settings, held = self._settings, self._held
        running = Counter((it.job.queue, it.job.task) for it in list(held.running))
        beating = None if self._keeper is None else self._keeper.trouble
        return Condition(
            worker=self._id,
            name=settings.name,
            version=_VERSION,
            lost=self._lost.is_set(),
            stopping=self._stop.is_set() or held.closed,
            lease_time=self._lease_time,
            good_until=held.good_until,
            trouble=self._trouble or beating,
            concurrency=settings.concurrency,
            buffered=len(held.buffer),
            unwritten=max(held.unwritten, 0),
            running=running,
        )

    @property
    def stuck(self) -> bool:
        """Whether handlers are left that ignore their cancellation."""
        return bool(self._held.running)

    async def run(self, *, drain: bool) -> None:
        try:
            async with _opening(self._claiming, self._finishing):
                await self._register()
            if drain:
                # Before anybody may find that there is nothing to do.
                await self._promote_due()
            async with asyncio.TaskGroup() as group:
                writing = group.create_task(self._finisher.run())
                self._slots.open(self._settings.concurrency)
                try:
                    async with self._background(group, drain=drain):
                        await self._until_told(drain=drain)
                except asyncio.CancelledError:
                    self._hurry.set()
                    raise
                finally:
                    await self._wind_down()
                    writing.cancel()
        finally:
            await self._say_goodbye()

    # Being somebody.

    async def _register(self) -> None:
        settings, begun = self._settings, time.monotonic()
        call = calls.register(
            name=settings.name,
            queues=settings.queues,
            tasks=self._registry.names(),
            lease_time=settings.lease_time,
            host=platform.node(),
            pid=os.getpid(),
            version=_VERSION,
        )
        self._id = await self._serving.run(call)
        self._outage.of_worker(self._id)
        self._held.good_until = begun + self._lease_time
        self._claimer.start_over(self._id)
        self._keeper = Keeper(
            self._database,
            self._held,
            self._id,
            lease_time=self._lease_time,
            lost=self._declared_lost,
            lost_jobs=self._drop,
            called_off=self._call_off,
            released=self._released,
            outage=self._outage,
        )
        self._keeper.start()
        emit(
            "worker.started",
            worker=self._id,
            queues=settings.queues or "all",
            concurrency=settings.concurrency,
            loop=type(asyncio.get_running_loop()).__module__.partition(".")[0],
        )

    def _declared_lost(self, error: WorkerLost) -> None:
        late = str(error.worker) != self._id  # a word about an earlier registration
        if not late and not self._lost.is_set():
            emit("worker.lost", worker=self._id, error=error)
            self._lost.set()

    async def _register_anew(self) -> float:
        """What we held was given to others: let go of it, and begin again under a new name."""
        await self._lost.wait()
        self._held.forget()
        if self._keeper is not None:
            await self._keeper.stop()
        await self._register()
        self._lost.clear()
        self._claimer.hint()
        return 0.0

    def _drop(self, lost: list[Running]) -> None:
        for running in lost:
            # One that has ended in the meantime was not lost but reported, and its slot runs another job.
            if running in self._held.running and not running.finished:
                emit("lease.lost", job=running.job.id, task=running.job.task)
                running.stop("lost")

    def _released(self, done: list[Report], left: list[Report], seconds: float) -> None:
        """The keeper has released jobs while the loop was blocked."""
        if done:
            self._settled(Settled(done, (), seconds))
        for report in left:
            self._finisher.add(report)

    def _call_off(self, called_off: dict[str, str]) -> None:
        for job in self._held.withdraw(called_off):
            self._finisher.add(self._executor.report(job, Cancel("called off before it started")))
        for running in list(self._held.running):
            if called_off.get(running.job.id) == running.job.lease:
                running.call_off()

    # Working.

    @contextlib.asynccontextmanager
    async def _background(self, group: asyncio.TaskGroup, *, drain: bool) -> AsyncIterator[None]:
        """Everything that keeps work coming in; it ends before the running jobs do."""
        duties = self._duties
        first, later = (0.0, 0.0) if drain else (AT_WORK, SETTLED_DOWN)
        steps = [
            every(1.0, self._claim, name="claimer", wake=self._claimer.wake),
            every(PROMOTE_SECONDS, duties.promote, name="promote", wake=duties.promote_now),
            every(duties.recover_seconds, duties.recover, name="recover", first=first),
            every(ADVANCE_SECONDS, duties.advance, name="advance", wake=duties.advance_now, first=first),
            every(UPKEEP_SECONDS, duties.upkeep, name="upkeep", first=later),
            every(SWEEP_SECONDS, duties.sweep, name="sweep", first=later),
            every(0.0, self._register_anew, name="register"),
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
            self._millisecond_timer.keep(self._claimer.pace)
            self._trouble = None
            return pause  # noqa: TRY300 - what follows is about errors
        except NotReady as error:
            self._trouble = error.message
            raise
        except WorkerLost as error:
            # The keeper finds out too, and may already have begun to put it right.
            self._declared_lost(error)
            return 0.1

    def _notified(self) -> None:
        self._claimer.hint()
        self._duties.heard()

    def _deaf(self, error: DatabaseUnavailable) -> None:
        self._claimer.forget_sleep()
        emit("listener.lost", worker=self._id, error=error)

    def _took(self, jobs: int) -> None:
        self._duties.claimed(jobs)

    def _settled(self, settled: Settled) -> None:
        reports, refused, seconds = settled
        jobs = self._held.settle(reports)
        self._reported = True
        for job, report in zip(jobs, reports, strict=True):
            if job is not None and job.suspect:
                self._claimer.hint()  # suspects are handed out one at a time
            if report.outcome in {"failed", "snoozed"}:
                self._duties.promote_now.set()  # it may be due again soon
                self._put_off = True
        emit(
            "jobs.finished",
            worker=self._id,
            jobs=Bunch(jobs),
            reports=Bunch(reports),
            refused=Bunch(refused),
            seconds=seconds,
        )

    def _release(self, job: Claimed) -> None:
        self._finisher.add(self._executor.report(job, Released()))

    # Stopping.

    async def _until_told(self, *, drain: bool) -> None:
        waits: set[asyncio.Task[Any]] = {asyncio.create_task(self._stop.wait())}
        if drain:
            waits.add(asyncio.create_task(self._until_drained()))
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()  # an error is no end of a drain
        finally:
            for one in waits:
                one.cancel()

    async def _until_drained(self) -> None:
        while True:
            await self._claimer.idle.wait()
            while not self._held.empty():
                self._held.changed.clear()
                await self._held.changed.wait()
            if not self._reported:
                return
            # Those jobs may have enqueued others, were given back, or are to be tried again at once.
            self._reported = False
            if self._put_off:
                self._put_off = False
                await self._promote_due()
            self._claimer.idle.clear()
            self._claimer.hint()

    async def _promote_due(self) -> None:
        """What is due belongs to a drain."""
        try:
            await self._duties.promote_all(self._stop)
        except NotReady:
            self._reported = self._put_off = True  # once more, when the database is back
        except HoldfastError:
            pass  # the duty tries again, and tells

    async def _wind_down(self) -> None:
        unstarted, grace_ends = self._held.close(), time.monotonic() + self._settings.grace
        emit(
            "worker.stopping",
            worker=self._id,
            buffered=len(unstarted),
            running=len(self._held.running),
            grace=self._settings.grace,
        )
        for job in unstarted:
            self._release(job)
        self._executor.processes.refuse()
        await self._slots.finish(grace=self._settings.grace, hurry=self._hurry)
        await self._written(grace_ends)

    async def _written(self, grace_ends: float = 0.0) -> None:
        """Wait for the reports: until the grace has passed, and always for a moment."""
        hurried = asyncio.create_task(self._hurry.wait())
        idle = asyncio.create_task(self._finisher.idle())
        try:
            patience = max(grace_ends - time.monotonic(), LAST_WORDS_SECONDS)
            await asyncio.wait({idle, hurried}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if self._hurry.is_set():
                await asyncio.wait({idle}, timeout=HURRIED_SECONDS)
        finally:
            hurried.cancel()
            idle.cancel()

    @property
    def _last_words(self) -> float:
        return HURRIED_SECONDS if self._hurry.is_set() else LAST_WORDS_SECONDS

    async def _say_goodbye(self) -> None:
        self._millisecond_timer.stop()
        if self._keeper is not None:
            await self._keeper.stop()
            await self._leave()
        for session in (self._claiming, self._finishing, self._serving):
            await session.close()
        self._handler_pools.close()
        await self._executor.processes.close()
        self._executor.threads.close()
        abandoned = len(self._held.running) + self._executor.threads.busy
        if abandoned:
            emit("worker.abandoned", worker=self._id, handlers=abandoned)
        emit("worker.stopped", worker=self._id)

    async def _leave(self) -> None:
        try:
            if self._held.doubted_at > -math.inf:
                # What a claim took that was cut off never began, whatever is on record of a suspect.
                held, ever = list(self._held.jobs), datetime.max.replace(tzinfo=UTC)
                disown = calls.disown(self._id, held, [], before=ever)
                await self._serving.run(disown, deadline=self._last_words)
            await self._serving.run(calls.leave(self._id), deadline=self._last_words)
        except Exception as error:  # noqa: BLE001 - the others find out when the lease has run out
            emit("leave.failed", worker=self._id, error=error)


def _duty_failed(warning: str) -> None:
    """What a duty could not do and went on without."""
    if warning.startswith("duty "):
        emit("duty.failed", error=warning)


@contextlib.asynccontextmanager
async def _opening(*sessions: Session) -> AsyncIterator[None]:
    """Connect them meanwhile; where that fails, their first call says so."""
    opened = asyncio.gather(*(session.open() for session in sessions), return_exceptions=True)
    try:
        yield
        await opened
    except BaseException:
        opened.cancel()
        await asyncio.wait({opened})
        raise
