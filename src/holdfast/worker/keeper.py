"""Keep the worker's leases and records while handlers run, in a thread with its own connection.

    heartbeat   every sixth of the lease time; notices when the worker was declared lost, and stops jobs that
                run here but are no longer held
    starts      records jobs that have run for half a second as running
    events      writes what handlers published
    progress    writes the newest progress of each job, in one call
    cancels     notices held jobs that were cancelled
    disown      after a failed claim, and at every 60th heartbeat: gives back jobs that the database counts
                as held here and that are missing here
    watch       reports a handler that blocks the event loop, with its stack; releases unstarted jobs, so that
                other workers can run them

It is a thread because a handler may block the event loop. The worker keeps its leases even then.

Its connection also serves the duties of the worker's loop, through `run`. It is opened while the worker holds
jobs, and closed when it has not been used for ten seconds. An idle worker does everything on the connection
that claims and listens, so it needs only that one. After a slow duty, the duties have a connection of their
own for a minute.
"""

import asyncio
import contextlib
import math
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from holdfast.database import UNUSED_SECONDS, Session, Settings, SparedSession, StandIn
from holdfast.operations import attempts, claiming, workers
from holdfast.operations.claiming import Report
from holdfast.telemetry import emit
from holdfast.values.call import Call
from holdfast.values.errors import BadInput, Collision, DatabaseUnavailable, NotReady, WorkerLost
from holdfast.worker.context.notes import chunks
from holdfast.worker.held import HeldJobs, Running, release
from holdfast.worker.loop import STARTUP_SECONDS, every

T = TypeVar("T")

FLUSH_SECONDS = 0.5
# Settings for events and reports, which must survive a crash of the server: these calls wait for the disk.
DURABLE: Settings = ()
# A duty that takes longer keeps claims waiting. So for the next minute, duties use another connection.
SLOW_SECONDS = 0.1
APART_SECONDS = 60.0
# How long such a duty may still take when the thread ends.
END_SECONDS = 1.0
# How long the loop is blocked before it is logged, and before jobs that have not started are released.
BLOCKED_SECONDS = 1.0
RELEASE_SECONDS = 2.0
# The file that calls handlers.
_EXECUTOR = str(Path(__file__).with_name("executor.py"))
# Without a failed claim, `disown` runs only every so many heartbeats. It is slow while a transaction holds an
# old snapshot: then it scans every job that the worker has ever held.
BEATS_BETWEEN_DISOWNS = 60


class Keeper:
    def __init__(
        self, held: HeldJobs, lease_time: float, open_session: Callable[[float], Session], stand_in: StandIn
    ) -> None:
        """`stand_in` runs a call on the connection that claims, in the worker's loop."""
        self._open_session = open_session
        self._stand_in = stand_in
        self._held = held
        self._lease_time = lease_time
        self._deadline = max(lease_time / 6, 1.0)
        # So a duty delays the next heartbeat by a third of the lease at most.
        self._duty_deadline = max(lease_time / 3, 1.0)
        self._worker_loop = asyncio.get_running_loop()
        self._detector = _BlockedLoopDetector(held)
        # The error of the last heartbeat, if it failed.
        self.last_error: str | None = None
        # Reports on jobs that were taken away while the loop was blocked, and are not yet written.
        self._unwritten_releases: list[Report] = []
        self._worker = ""
        self._beats = 0
        self._last_beat: datetime | None = None
        # The clock of the server minus that of this machine.
        self._offset = 0.0
        # Until then even an idle worker runs its duties on the keeper's connection.
        self._apart_until = -math.inf
        self._session: SparedSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._ready = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start a thread that keeps the registration which `held` names."""
        self._worker, self._beats, self._last_beat = self._held.worker, 0, None
        self._unwritten_releases = []
        # One connection serves everything. The deadline and the lock_timeout limit how long a slow flush, or
        # a slow duty, delays the heartbeat.
        own = self._open_session(self._deadline)
        self._session = SparedSession(own, self._ask_instead)
        self._ready.clear()
        self._thread = threading.Thread(target=self._thread_main, name="holdfast-keeper", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._loop is None:
            raise RuntimeError("the keeper's thread could not make an event loop")

    async def run(self, call: Call[T]) -> T:
        """Run a duty. Only the worker's loop calls this."""
        async with self._one_at_a_time:  # so that no more than one duty delays a heartbeat
            begun = time.monotonic()
            if self._held.jobs or begun < self._apart_until:
                return await self._run(call)
            try:
                return await self._stand_in(call, None, deadline=self._duty_deadline)
            finally:
                if time.monotonic() - begun > SLOW_SECONDS:
                    self._apart_until = time.monotonic() + APART_SECONDS

    async def _run(self, call: Call[T]) -> T:
        loop, me = self._loop, asyncio.current_task()
        if loop is None:
            raise _registering()
        try:
            # The timeout is for the moment in which the thread ends.
            async with asyncio.timeout(2 * self._duty_deadline):
                assert self._session is not None  # noqa: S101 - the thread has one while it runs
                asked = self._session.run(call, deadline=self._duty_deadline)
                return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asked, loop))
        except (TimeoutError, RuntimeError):
            raise _registering() from None
        except asyncio.CancelledError:
            if me is not None and me.cancelling():
                raise
            raise _registering() from None  # the thread has ended, and its calls with it

    async def _ask(self, call: Call[T], *, deadline: float | None = None, durable: bool = False) -> T:
        assert self._session is not None  # noqa: S101 - the thread has one while it runs
        settings = DURABLE if durable else None
        if not self._held.jobs and not self._detector.blocked:
            # The timeout is for a loop that is blocked just now.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._deadline):
                    answer = await self._ask_instead(call, settings)
                self._session.own.report_answer()  # it may have failed, and is not used now
                return answer
        return await self._session.run(call, deadline=deadline, settings=settings)

    async def _ask_instead(
        self, call: Call[T], settings: Settings | None, *, deadline: float | None = None
    ) -> T:
        asked = self._stand_in(call, settings, deadline=deadline)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asked, self._worker_loop))

    async def stop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and self._task is not None:
            with contextlib.suppress(RuntimeError):  # the thread has ended by itself
                loop.call_soon_threadsafe(self._task.cancel)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def _thread_main(self) -> None:
        try:
            with contextlib.suppress(asyncio.CancelledError):
                asyncio.run(self._keep())
        finally:
            self._loop = None
            self._ready.set()

    async def _keep(self) -> None:
        assert self._session is not None  # noqa: S101 - start() has made one
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._ready.set()
        try:
            async with asyncio.TaskGroup() as group:
                # The registration counts as a heartbeat, and the first jobs get the machine.
                pause = self._lease_time / 6
                first = min(pause, STARTUP_SECONDS)
                group.create_task(every(pause, self._beat, name="heartbeat", first=first))
                group.create_task(every(FLUSH_SECONDS, self._flush, name="keeper", first=FLUSH_SECONDS))
                group.create_task(every(FLUSH_SECONDS, self._check_loop, name="watch"))
        except* WorkerLost:
            pass  # already reported; there are no leases left to keep
        finally:
            self._loop = None  # no further calls are taken
            await _end_calls()
            await self._session.close()

    async def _beat(self) -> None:
        try:
            await self._heartbeat()
            self.last_error = None
        except NotReady as error:
            self.last_error = error.message
            raise
        except WorkerLost as error:
            self._worker_loop.call_soon_threadsafe(self._held.declare_lost, error)
            raise

    async def _heartbeat(self) -> None:
        sent, before = time.monotonic(), self._last_beat
        heartbeat, deadline = workers.heartbeat(self._worker), max(self._lease_time / 3, 1.0)
        said_at = time.time()
        self._last_beat = await self._ask(heartbeat, deadline=deadline)
        seconds = time.monotonic() - sent
        if seconds <= SLOW_SECONDS:  # a heartbeat that had to wait says little about the clock
            self._offset = self._last_beat.timestamp() - said_at - seconds / 2
        emit("heartbeat.accepted", worker=self._worker, seconds=seconds, offset=self._offset)
        late = time.monotonic() > self._held.lease_valid_until
        self._held.lease_valid_until = sent + self._lease_time
        if late:
            self._worker_loop.call_soon_threadsafe(self._held.wake_slots)
        self._beats += 1
        await self._find_lost_jobs()
        in_doubt = sent < self._held.claim_doubted_at + 2 * self._lease_time
        if before is not None and (in_doubt or self._beats % BEATS_BETWEEN_DISOWNS == 0):
            await self._disown(before)

    async def _find_lost_jobs(self) -> None:
        """Find jobs that run here but are no longer held: overdue, or taken away by an operator."""
        running = self._running_jobs()
        if running:
            leases = [it.job.lease for it in running.values()]
            gone = await self._ask(attempts.not_held(list(running), leases))
            self._report_lost(running, gone)

    def _running_jobs(self) -> dict[str, Running]:
        running = list(self._held.running)
        return {it.job.id: it for it in running if it.stop_reason is None and not it.completed_by_handler}

    def _report_lost(self, running: Mapping[str, Running], gone: Collection[str]) -> None:
        if gone:
            self._worker_loop.call_soon_threadsafe(self._held.lose, [running[job_id] for job_id in gone])

    async def _disown(self, before: datetime) -> None:
        in_flight, held = list(self._held.in_flight), list(self._held.jobs)
        amount = await self._ask(workers.disown(self._worker, held, in_flight, before))
        if amount:
            emit("worker.disowned", worker=self._worker, jobs=amount)

    async def _check_loop(self) -> None:
        blocked = self._detector.check()
        if blocked >= RELEASE_SECONDS:
            await self._release_unstarted(blocked)
        elif self._unwritten_releases:
            left, self._unwritten_releases = self._unwritten_releases, []
            self._worker_loop.call_soon_threadsafe(self._held.settle_released, [], left, 0.0)

    async def _release_unstarted(self, blocked: float) -> None:
        """Release the jobs that wait behind the blocked loop. From here on they cannot start here."""
        jobs, leases = self._held.take_unstarted()
        self._unwritten_releases += [release(job) for job in jobs]
        if leases:
            # A claim may still happen after this question. Then the next heartbeats find its jobs.
            self._held.claim_doubted_at = time.monotonic()
        for lease in leases:
            found = await self._ask(claiming.claimed(worker=self._worker, lease=lease))
            self._unwritten_releases += [release(job) for job in found]
        if self._unwritten_releases:
            begun = time.monotonic()
            refused = await self._ask(claiming.finish(self._unwritten_releases), durable=True)
            locked = {refusal.id for refusal in refused if refusal.sqlstate == claiming.LOCKED}
            done = [report for report in self._unwritten_releases if report.id not in locked]
            self._unwritten_releases = [report for report in self._unwritten_releases if report.id in locked]
            if done:
                emit("jobs.released", worker=self._worker, jobs=len(done), blocked=blocked)
                seconds = time.monotonic() - begun
                self._worker_loop.call_soon_threadsafe(self._held.settle_released, done, [], seconds)

    async def _flush(self) -> None:
        """Write everything due. Locked jobs are left for the next time, so nothing here waits."""
        if self._session is not None:
            await self._session.close_unused(UNUSED_SECONDS)
        await self._check_cancels()
        running = self._running_jobs()
        at_work = running.values()
        gone = await self._flush_starts(at_work)
        gone |= await self._flush_events(at_work)
        gone |= await self._flush_notes(at_work)
        self._report_lost(running, gone)

    async def _check_cancels(self) -> None:
        if self._held.jobs:
            cancelled = await self._ask(workers.cancels(self._worker))
            if cancelled:
                self._worker_loop.call_soon_threadsafe(self._held.cancel, dict(cancelled))

    async def _flush_starts(self, running: Iterable[Running]) -> set[str]:
        now = time.monotonic()
        # The claim itself recorded the start of a suspect.
        long = [
            it
            for it in running
            if not it.recorded
            and not it.job.suspect
            and (now - it.begun >= FLUSH_SECONDS or (it.context is not None and it.context.has_notes))
        ]
        return await self._write_together_or_each(long, lambda some: self._write_starts(some, now))

    async def _write_together_or_each(
        self, them: list[Running], write: Callable[[list[Running]], Awaitable[set[str]]]
    ) -> set[str]:
        """Write all of them at once, or each alone if the database refuses something in one of them."""
        if not them:
            return set()
        try:
            return await write(them)
        except (Collision, BadInput):
            if len(them) == 1:
                raise
        gone: set[str] = set()
        for it in them:
            try:
                gone |= await write([it])
            except Collision:
                continue
            except BadInput as error:
                emit("notes.broken", job=it.job.id, error=error)
        return gone

    async def _write_starts(self, long: list[Running], now: float) -> set[str]:
        ids, leases = [it.job.id for it in long], [it.job.lease for it in long]
        unwritten = await self._ask(attempts.start(ids, leases, [now - it.begun for it in long]))
        for it in long:
            it.recorded = it.job.id not in unwritten.locked
        return unwritten.gone

    async def _flush_events(self, running: Iterable[Running]) -> set[str]:
        talkative = [it for it in running if it.context and it.context.notes.has_events]
        return await self._write_together_or_each(talkative, self._write_events)

    async def _write_events(self, talkative: list[Running]) -> set[str]:
        contexts = [(it.job.id, it.context) for it in talkative if it.context]
        own = [(job_id, context.notes, context.notes.unpublished()) for job_id, context in contexts]
        gone, locked = set[str](), set[str]()
        for some in chunks([event for _, _, events in own for event in events]):
            unwritten = await self._ask(attempts.publish_many(some, skip_locked=True), durable=True)
            gone |= unwritten.gone
            locked |= unwritten.locked
        for job_id, notes, events in own:
            if job_id not in locked:
                notes.published(events)
        return gone

    async def _flush_notes(self, running: Iterable[Running]) -> set[str]:
        talkative = [it for it in running if it.context and it.context.notes.note is not it.written]
        return await self._write_together_or_each(talkative, self._write_notes)

    async def _write_notes(self, talkative: list[Running]) -> set[str]:
        notes = [(it, it.context.notes, it.context.notes.note) for it in talkative if it.context]
        reports = [(it, note, said.progress(note, it.written)) for it, said, note in notes]
        call = attempts.progress_many([report for _, _, report in reports if report])
        unwritten = await self._ask(call)
        for it, note, _ in reports:
            if it.job.id not in unwritten.locked:
                it.written = note
        return unwritten.gone


class _BlockedLoopDetector:
    """Detects a blocked event loop, and which job blocks it.

    It counts checks without an answer instead of the time that passed: a process that was stopped as a whole
    has blocked nothing.
    """

    def __init__(self, held: HeldJobs) -> None:
        self._held = held
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._unanswered = 0
        self._reported = False

    @property
    def blocked(self) -> bool:
        """Return whether the loop has left a check without an answer for a while."""
        return self._unanswered > 1

    def check(self) -> float:
        """Return how long the loop has been blocked."""
        blocked = self._unanswered * FLUSH_SECONDS
        if blocked >= BLOCKED_SECONDS and not self._reported:
            self._reported = True
            job, stack = self._blocking_job(), self._stack()
            emit("loop.blocked", worker=self._held.worker, seconds=blocked, **job, stack=stack)
        self._unanswered += 1
        self._loop.call_soon_threadsafe(self._answer)
        return blocked

    def _blocking_job(self) -> dict[str, str]:
        """Return the job whose handler blocks the loop; empty if that happens in another asyncio task."""
        current = asyncio.current_task(self._loop)
        for it in list(self._held.running):
            if it.slot is current:
                return {"task": it.job.task, "job": it.job.id}
        return {}

    def _stack(self) -> str:
        """Return the stack from the handler on."""
        frame = sys._current_frames().get(self._thread)  # noqa: SLF001 - the documented way to see another thread
        frames = traceback.extract_stack(frame) if frame else []
        last = max((at for at, each in enumerate(frames) if each.filename == _EXECUTOR), default=-1)
        return "".join(traceback.format_list(frames[last + 1 :] or frames))

    def _answer(self) -> None:
        self._unanswered = 0
        self._reported = False


async def _end_calls() -> None:
    """Wait for the calls of the worker's loop. A duty that continues without its worker holds its lock."""
    calls = asyncio.all_tasks() - {asyncio.current_task()}
    if calls:
        await asyncio.wait(calls, timeout=END_SECONDS)


def _registering() -> DatabaseUnavailable:
    return DatabaseUnavailable("the worker registers again", hint="It tries again by itself.")
