"""Run a worker, from its registration until it has deregistered.

Which part wakes which: each waits for a signal of the held jobs, and its work sets the signals of others.

    notification ──► claimer ── take ──► buffer ──► N slots ── report ──► finisher ── settle ──┐
                        ▲                             │                                        │
                        ├──────── a slot is free ─────┘                                        │
                        ├──────── a suspect has ended, so the next one may start ──────────────┤
                        │                                                                      │
                        └─ jobs are due ─ duties: promote ◄── a job is to run again ───────────┘
                                            ▲     advance ◄── 4,000 jobs were claimed
    notification of a later job ────────────┤
    do_duties, every 2 s ───────────────────┴──► fire, upkeep, sweep, if they are due

    keeper, a thread ──► heartbeat, starts, progress; stops jobs that were cancelled or lost

A worker that was declared lost drops its jobs and registers again. To stop, a worker first ends everything
that brings in work, then its slots, then its finisher. Then it deregisters.
"""

import asyncio
import contextlib
import math
import os
import platform
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Any, TypeVar

from holdfast.database import (
    DUTY_SETTINGS,
    UNUSED_SECONDS,
    Database,
    Outage,
    Session,
    Settings,
    SparedSession,
    connect_pauses,
)
from holdfast.operations import workers
from holdfast.task import Registry
from holdfast.telemetry import emit
from holdfast.values.call import Call
from holdfast.values.errors import (
    DatabaseUnavailable,
    HoldfastError,
    NotReady,
    TooManyConnections,
    WorkerLost,
)
from holdfast.worker.claimer import Claimer
from holdfast.worker.demand import State
from holdfast.worker.duties import LONGEST_PAUSE, Duties
from holdfast.worker.executor import Executor
from holdfast.worker.finisher import Finisher
from holdfast.worker.held import HeldJobs
from holdfast.worker.keeper import Keeper
from holdfast.worker.loop import STARTUP_SECONDS, every
from holdfast.worker.millisecond_timer import MillisecondTimer
from holdfast.worker.monitor.health import Condition
from holdfast.worker.monitor.http import Address
from holdfast.worker.slots import Slots

T = TypeVar("T")

_VERSION = version("holdfast")
DEREGISTER_SECONDS = 10.0
STOP_NOW_SECONDS = 1.0
# Settings for calls that happen once: they wait for locks until their deadline, but not for the disk.
PATIENT = (("lock_timeout", "0"), ("synchronous_commit", "off"))
# The deadline of one call lies between these. A silent database costs a worker at most its lease, and an
# overloaded database gets at least 3 seconds.
DEADLINES = (3.0, 30.0)
# A worker that listens claims this often even without a notification. So it finds jobs that sent none, and
# notices a connection that has died silently.
CHECK_SECONDS = 5.0
# The same for a worker that does not listen.
POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    queues: list[str] | None
    concurrency: int
    lease_time: timedelta
    poll_interval: float | None
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
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._held = held = HeldJobs()
        self._outage = Outage(database.refusals)
        # Only this worker listens on this channel.
        self._channel = f"holdfast_{secrets.token_hex(16)}" if options.notify else None
        self._claim_session = self._open_claim_session()
        # Shorter than deadlock_timeout: in a deadlock the reports give way, not the other transaction.
        finishing = self._open("finisher", ("lock_timeout", "500ms"))
        self._finish_session = SparedSession(finishing, self._claim_session.run_as)
        # A handler may hold one connection in its own transaction and use another one meanwhile. The
        # application's pool may be exhausted, so handlers have their own.
        self._handler_pools = Database(
            database.dsn, transaction_pooling=database.transaction_pooling, pool_size=2 * options.concurrency
        )
        self._executor = self._new_executor()
        self._slots = Slots(held, self._executor)
        self._finisher = Finisher(self._finish_session, held)
        self._claimer = Claimer(
            self._claim_session,
            held,
            State(options.concurrency, self._poll_interval, options.notify),
            queues=options.queues,
            tasks=registry.names(),
        )
        self._keeper = Keeper(held, self._lease_time, self._open_keeper_session, self._claim_session.run_as)
        self._duties = Duties(self._keeper, held, self._open_duty_session)
        self._millisecond_timer = MillisecondTimer(held)
        self._last_error: str | None = None

    @property
    def _poll_interval(self) -> float:
        if self._options.notify:
            return min(self._options.poll_interval or CHECK_SECONDS, CHECK_SECONDS)
        return self._options.poll_interval or POLL_SECONDS

    # Connections.

    def _open(self, purpose: str, *settings: tuple[str, str], deadline: float | None = None) -> Session:
        return self._database.session(
            ("application_name", f"holdfast {purpose}"),
            *settings,
            deadline=deadline or self._deadline,
            outage=self._outage,
            warned=_duty_failed,
        )

    @property
    def _settings(self) -> Settings:
        """The settings of the connections that carry claims, heartbeats and duties."""
        return (
            # If a claim is lost in a crash, its jobs are claimed again. Heartbeats and duties need not wait
            # for the disk either.
            ("synchronous_commit", "off"),
            # A call that waits for a lock delays a heartbeat by at most this long.
            ("lock_timeout", f"{min(self._lease_time / 12, 1.0) * 1000:.0f}ms"),
            *DUTY_SETTINGS,
        )

    @property
    def _deadline(self) -> float:
        return min(max(self._lease_time, DEADLINES[0]), DEADLINES[1])

    def _open_claim_session(self) -> Session:
        if self._channel is None:
            return self._open("claimer", *self._settings)
        return self._database.listening_session(
            ("application_name", "holdfast claimer"),
            *self._settings,
            deadline=self._deadline,
            channels=[self._channel, workers.channel("+")],
            heard=self._notified,
            lost=self._listener_lost,
            outage=self._outage,
            warned=_duty_failed,
        )

    def _open_keeper_session(self, deadline: float) -> Session:
        return self._open("keeper", *self._settings, deadline=deadline)

    def _open_duty_session(self) -> Session:
        return self._open("duties", ("lock_timeout", "2s"), ("synchronous_commit", "off"), *DUTY_SETTINGS)

    async def _close_unused(self) -> None:
        await self._finish_session.close_unused(UNUSED_SECONDS)
        for pools in (self._handler_pools, self._database):
            pools.close_unused(UNUSED_SECONDS)

    def _new_executor(self) -> Executor:
        run_call = self._finish_session.run
        return Executor(self._registry, self._handler_pools, run_call, self._options.max_isolated)

    # Seen from outside.

    def stop(self) -> None:
        (self._stop_now if self._stop.is_set() else self._stop).set()

    def condition(self) -> Condition:
        """Return the worker's state. May be called from any thread."""
        options, held = self._options, self._held
        running = Counter((it.job.queue, it.job.task) for it in list(held.running))
        return Condition(
            worker=held.worker,
            name=options.name,
            version=_VERSION,
            lost=held.lost.is_set(),
            stopping=self._stop.is_set() or held.closed,
            lease_time=self._lease_time,
            lease_valid_until=held.lease_valid_until,
            last_error=self._last_error or self._keeper.last_error,
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
            if not await self._register_unless_stopped():
                return
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
            channel=self._channel,
        )
        self._held.worker = await self._when_connected(call)
        self._outage.name_worker(self._held.worker)
        self._held.lease_valid_until = begun + self._lease_time
        self._claimer.forget_wake_ups()
        self._keeper.start()
        emit(
            "worker.started",
            worker=self._held.worker,
            queues=options.queues or "all",
            concurrency=options.concurrency,
            loop=type(asyncio.get_running_loop()).__module__.partition(".")[0],
        )

    async def _register_unless_stopped(self) -> bool:
        """Register, and return True, or return False if the worker is stopped before."""
        registering = asyncio.create_task(self._register())
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({registering, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not registering.done():
                # The registration may be nearly done. Then the worker deregisters as usual.
                await asyncio.wait({registering}, timeout=STOP_NOW_SECONDS)
                if not registering.done() or isinstance(registering.exception(), NotReady):
                    return False
            registering.result()
            return True
        finally:
            stopping.cancel()
            registering.cancel()
            await asyncio.wait({registering})

    async def _when_connected(self, call: Call[T]) -> T:
        """Run a call as soon as the server has a connection left. Other errors are raised at once."""
        pauses = connect_pauses()
        while True:
            with contextlib.suppress(TooManyConnections):
                return await self._claim_session.run(call, settings=PATIENT)
            await asyncio.sleep(next(pauses))

    async def _register_again(self) -> float:
        """Drop all jobs after the worker was declared lost, and register under a new id."""
        await self._held.lost.wait()
        self._held.drop_all()
        await self._keeper.stop()
        await self._register()
        self._held.lost.clear()
        self._held.hint()
        return 0.0

    # Work.

    @contextlib.asynccontextmanager
    async def _background(self, group: asyncio.TaskGroup, *, drain: bool) -> AsyncIterator[None]:
        """Run every loop that brings in work. They end before the running jobs do."""
        held, duties, now = self._held, self._duties, self._duties.now
        steps = [
            every(1.0, self._claim, name="claimer", wake=held.claim_now),
            every(2.0, duties.do_duties, name="duties", first=0.0 if drain else STARTUP_SECONDS),
            every(LONGEST_PAUSE, duties.fire, name="fire", wake=now["fire"], first=None),
            every(LONGEST_PAUSE, duties.promote, name="promote", wake=now["promote"], first=None),
            every(LONGEST_PAUSE, duties.advance, name="advance", wake=now["advance"], first=None),
            every(LONGEST_PAUSE, duties.upkeep, name="upkeep", wake=now["upkeep"], first=None),
            every(LONGEST_PAUSE, duties.sweep, name="sweep", wake=now["sweep"], first=None),
            # Connect while the first jobs run, so that their reports need not wait for it.
            every(LONGEST_PAUSE, self._finish_session.open, name="reports", wake=held.arrived, first=None),
            every(UNUSED_SECONDS / 2, self._close_unused, name="connections"),
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
            self._millisecond_timer.adjust(self._held.pace.per_second)
            self._last_error = None
            return pause  # noqa: TRY300 - the handlers below are for step() alone
        except NotReady as error:
            self._last_error = error.message
            raise
        except WorkerLost as error:
            # The keeper notices it too, so this worker may already have a new registration.
            self._held.declare_lost(error)
            return 0.1

    def _notified(self, payloads: set[bytes]) -> None:
        """Claim if a job may have come. An empty payload says that only a time has changed.

        No payloads say that the connection is new or was lost. A failing claimer keeps to its pause.
        """
        if payloads - {b""} or (not payloads and self._last_error is None):
            self._held.hint()
        if b"" in payloads or not payloads:
            self._duties.look_soon()

    def _listener_lost(self, error: DatabaseUnavailable) -> None:
        self._claimer.forget_wake_ups()
        emit("listener.lost", worker=self._held.worker, error=error)

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
        held = self._held
        while True:
            await held.idle.wait()
            while not held.is_empty():
                held.changed.clear()
                await held.changed.wait()
            if not held.reported:
                return
            # Those jobs may have enqueued others, been given back, or be due for a retry at once.
            held.reported = False
            if held.retry_reported:
                held.retry_reported = False
                await self._promote_due()
            held.idle.clear()
            held.hint()

    async def _promote_due(self) -> None:
        """Promote the jobs that are due, because a drain runs them too."""
        try:
            await self._duties.promote_all(self._stop)
        except NotReady:
            self._held.reported = self._held.retry_reported = True  # try again when the database is back
        except HoldfastError:
            pass  # the duty tries again, and reports the error

    async def _finish_work(self) -> None:
        unstarted, grace_ends = self._held.close(), time.monotonic() + self._options.grace
        emit(
            "worker.stopping",
            worker=self._held.worker,
            buffered=len(unstarted),
            running=len(self._held.running),
            grace=self._options.grace,
        )
        self._held.give_back(unstarted)
        self._executor.processes.refuse()
        await self._slots.finish(grace=self._options.grace, stop_now=self._stop_now)
        await self._wait_for_reports(grace_ends)

    async def _wait_for_reports(self, grace_ends: float = 0.0) -> None:
        """Wait for the reports to be written, until the grace has passed but at least for a few seconds."""
        stopping_now = asyncio.create_task(self._stop_now.wait())
        written = asyncio.create_task(self._held.all_written.wait())
        try:
            patience = max(grace_ends - time.monotonic(), DEREGISTER_SECONDS)
            await asyncio.wait({written, stopping_now}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if self._stop_now.is_set():
                await asyncio.wait({written}, timeout=STOP_NOW_SECONDS)
        finally:
            stopping_now.cancel()
            written.cancel()

    @property
    def _deregister_timeout(self) -> float:
        return STOP_NOW_SECONDS if self._stop_now.is_set() else DEREGISTER_SECONDS

    async def _shut_down(self) -> None:
        self._millisecond_timer.stop()
        if self._held.worker:
            await self._keeper.stop()
            await self._deregister()
        for session in (self._claim_session, self._finish_session):
            await session.close()
        self._handler_pools.close()
        await self._executor.processes.close()
        self._executor.threads.close()
        abandoned = len(self._held.running) + self._executor.threads.busy
        if abandoned:
            emit("worker.abandoned", worker=self._held.worker, handlers=abandoned)
        emit("worker.stopped", worker=self._held.worker)

    async def _deregister(self) -> None:
        worker, timeout = self._held.worker, self._deregister_timeout
        try:
            if self._held.claim_doubted_at > -math.inf:
                # A claim that was interrupted may have taken jobs, and none of them has begun. Suspects are
                # given back too, although their claim has recorded a start.
                held, ever = list(self._held.jobs), datetime.max.replace(tzinfo=UTC)
                disown = workers.disown(worker, held, [], before=ever)
                await self._claim_session.run(disown, deadline=timeout, settings=PATIENT)
            await self._claim_session.run(workers.leave(worker), deadline=timeout, settings=PATIENT)
        except Exception as error:  # noqa: BLE001 - other workers notice when the lease has expired
            emit("leave.failed", worker=worker, error=error)


def _duty_failed(warning: str) -> None:
    """Emit the warning of a duty that has skipped a failing part."""
    if warning.startswith("duty "):
        emit("duty.failed", error=warning)
