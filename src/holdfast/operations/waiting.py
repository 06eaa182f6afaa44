"""Waits for jobs to end: thousands of waiters share one thread and two connections.

    result() ─┐                      ┌── listen: the ids of jobs that have ended
    result() ─┼──► Waiting (thread) ─┤
    result() ─┘                      └── session: register waits; ask for the ends of jobs

`result()` gets a future from `Waiting`. The thread registers the wait in the database, so the transaction
that ends the job knows whom to notify. The thread then reads the end of the job and sets the future.

A notification can be missing: a transaction that was already ending the job did not see the wait, or a
connection was lost. So the thread also checks jobs without a notification. It checks a new job again a few
times soon after its wait was registered. It checks all jobs every few seconds, and more often if LISTEN does
not work.
"""

import asyncio
import atexit
import contextlib
import os
import secrets
import threading
import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from functools import partial

from holdfast.database import Database, Session
from holdfast.operations.results import End, await_jobs, await_no_more, ends_of
from holdfast.telemetry import emit
from holdfast.values.errors import DatabaseUnavailable, NotReady

# The times after which a new job is checked again, to catch an end that was being written meanwhile.
RECHECK_SECONDS = (0.01, 0.04, 0.12, 0.3)
# How often all jobs are checked: while the thread listens, and while it does not.
CHECK_SECONDS = 5.0
POLL_SECONDS = 0.5
# The thread ends after this time without a waiter.
IDLE_SECONDS = 30.0
# The most jobs in one call.
BATCH = 5000

_CLOSED = "this Holdfast was closed while a job was waited for"


class Waiting:
    """All waits of this process for jobs of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._closed = False
        self._reset()
        # Not at the next call, because another thread may hold the lock during the fork.
        os.register_at_fork(after_in_child=partial(_reset_in_child, weakref.ref(self)))

    def _reset(self) -> None:
        """Forget all waiters and the hub, whose thread a forked child does not have."""
        self._lock = threading.Lock()
        self._waiters: dict[str, list[Future[End]]] = {}
        # Jobs that the hub has still to register, and jobs that lost their last waiter.
        self._new: list[str] = []
        self._dropped: list[str] = []
        self._hub: _Hub | None = None

    def add(self, ids: Iterable[str]) -> "list[Future[End]]":
        """Return a future for the end of each job."""
        futures: list[Future[End]] = []
        with self._lock:
            if self._closed:
                raise DatabaseUnavailable(_CLOSED)
            for job_id in ids:
                future: Future[End] = Future()
                waiters = self._waiters.setdefault(job_id, [])
                if not waiters:
                    self._new.append(job_id)
                waiters.append(future)
                futures.append(future)
            if futures and self._hub is None:
                hub = _Hub(self._database, self)
                hub.start()
                self._hub = hub
                # atexit calls the last function first, so this runs before an embedded server stops.
                atexit.register(self.close)
            elif self._hub is not None:
                self._hub.wake()
        return futures

    def drop(self, job_id: str, future: "Future[End]") -> None:
        """Forget one wait."""
        with self._lock:
            waiters = self._waiters.get(job_id, [])
            if future in waiters:
                waiters.remove(future)
                if not waiters:
                    del self._waiters[job_id]
                    self._dropped.append(job_id)
        future.cancel()

    def close(self) -> None:
        """Stop the thread, and fail all waits."""
        atexit.unregister(self.close)
        with self._lock:
            self._closed, hub = True, self._hub
        if hub is not None:
            hub.stop()
        self.fail(DatabaseUnavailable(_CLOSED))

    # Used by the hub.

    def take(self) -> tuple[list[str], list[str]]:
        """Return the next jobs to register, and the jobs to deregister."""
        with self._lock:
            new = [job_id for job_id in self._new if job_id in self._waiters]
            dropped = [job_id for job_id in self._dropped if job_id not in self._waiters]
            self._new, self._dropped = new[BATCH:], []
            return new[:BATCH], dropped

    def register_again(self) -> None:
        """Have the hub register all waits again."""
        with self._lock:
            self._new = list(self._waiters)

    def waited_for(self) -> list[str]:
        """Return all jobs that have a waiter."""
        with self._lock:
            return list(self._waiters)

    def still_waited_for(self, ids: Iterable[str]) -> list[str]:
        """Return the jobs among `ids` that still have a waiter."""
        with self._lock:
            return [job_id for job_id in ids if job_id in self._waiters]

    def settle(self, ends: Sequence[End]) -> None:
        """Give each end to the waiters of its job."""
        for end in ends:
            with self._lock:
                waiters = self._waiters.pop(end.id, [])
            for future in waiters:
                if future.set_running_or_notify_cancel():
                    future.set_result(end)

    def fail(self, error: Exception, hub: "_Hub | None" = None) -> None:
        """Raise the error in all waiters. The next waiter starts a new hub."""
        with self._lock:
            waiters, self._waiters, self._new = self._waiters, {}, []
            if self._hub is hub:
                self._hub = None
        for future in (future for some in waiters.values() for future in some):
            if future.set_running_or_notify_cancel():
                future.set_exception(error)

    def leave(self, hub: "_Hub") -> bool:
        """Detach the hub if it has nothing to do, and return whether it has nothing to do."""
        with self._lock:
            if self._waiters or self._dropped:
                return False
            if self._hub is hub:
                self._hub = None
            return True


def _reset_in_child(waiting: "weakref.ref[Waiting]") -> None:
    if (found := waiting()) is not None:
        found._reset()  # noqa: SLF001 - part of the class


class _Hub:
    """The thread that finds the ends of jobs, and its event loop.

    Two coroutines run on the loop. `_listen` collects notifications and wakes `_run`. `_run` takes one turn
    after another: it registers waits, checks jobs, and sleeps.
    """

    def __init__(self, database: Database, waiting: Waiting) -> None:
        self._database = database
        self._waiting = waiting
        self._channel = f"holdfast_wait_{secrets.token_hex(8)}"
        self._is_listening = False
        self._notified: set[str] = set()
        self._check_all_at = 0.0
        self._rechecks: list[tuple[float, list[str]]] = []
        self._stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken: asyncio.Event | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, name="holdfast-waiting", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()

    def wake(self) -> None:
        loop, woken = self._loop, self._woken
        if loop is not None and woken is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(woken.set)

    def stop(self) -> None:
        self._stopped = True
        self.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except Exception as error:  # noqa: BLE001 - raised in the waiters, which would otherwise never return
            emit("waiting.broken", error=error)
            self._ready.set()  # first, because `add` waits for this while it holds the lock that `fail` needs
            self._waiting.fail(error, self)
        finally:
            self._ready.set()

    async def _run(self) -> None:
        self._loop, self._woken = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        session = self._database.session(("application_name", "holdfast waiting"))
        listening = asyncio.create_task(self._listen())
        try:
            while not self._stopped:
                try:
                    if await self._turn(session):
                        return
                except NotReady as error:
                    emit("waiting.failed", error=error)
                    await asyncio.sleep(POLL_SECONDS)
                    # The jobs of this turn may be unregistered and unchecked.
                    self._waiting.register_again()
        finally:
            listening.cancel()
            await asyncio.wait({listening})
            await session.close()

    async def _turn(self, session: Session) -> bool:
        """Check the jobs that may have ended, then sleep. Return True if the hub may end.

        1. Register the new waits.
        2. Check the new jobs, those with a notification, and those with a recheck that is due. From time to
           time check all jobs.
        3. Deregister the jobs that have ended or lost their last waiter.
        4. Plan the rechecks of the new jobs, and sleep.
        """
        loop, woken = self._loop, self._woken
        assert loop is not None and woken is not None  # noqa: S101, PT018 - both are set together
        woken.clear()
        new, dropped = self._waiting.take()
        due, self._notified = self._notified, set()
        due.update(self._due_rechecks(loop.time()))
        if self._is_listening and new:
            await session.run(await_jobs(new, self._channel))
        if loop.time() >= self._check_all_at:
            self._check_all_at = loop.time() + (CHECK_SECONDS if self._is_listening else POLL_SECONDS)
            due.update(self._waiting.waited_for())
        checked = [*dict.fromkeys([*new, *due])]
        ended: list[str] = []
        for begin in range(0, len(checked), BATCH):
            ends = await session.run(ends_of(checked[begin : begin + BATCH]))
            self._waiting.settle(ends)
            ended += [end.id for end in ends]
        if self._is_listening and (ended or dropped):
            await session.run(await_no_more([*ended, *dropped], self._channel))
        if new:
            self._rechecks += [(loop.time() + seconds, new) for seconds in RECHECK_SECONDS]
        return await self._sleep(loop.time(), woken)

    def _due_rechecks(self, now: float) -> list[str]:
        """Take the rechecks that are due, and return their jobs."""
        due = [ids for when, ids in self._rechecks if when <= now]
        self._rechecks = [(when, ids) for when, ids in self._rechecks if when > now]
        return self._waiting.still_waited_for(job_id for ids in due for job_id in ids)

    async def _sleep(self, now: float, woken: asyncio.Event) -> bool:
        """Sleep until there is work. Return True if the hub may end: it was idle, and there is no waiter."""
        has_waiters = bool(self._waiting.waited_for())
        if has_waiters:
            until = min([self._check_all_at, *(when for when, _ in self._rechecks)])
        else:
            until, self._rechecks = now + IDLE_SECONDS, []
        try:
            async with asyncio.timeout(until - now):
                await woken.wait()
        except TimeoutError:
            return not has_waiters and self._waiting.leave(self)
        return False

    async def _listen(self) -> None:
        """Collect notifications, and connect again when the connection is lost."""
        while True:
            try:
                if not await self._database.alistens():
                    return
                async with contextlib.aclosing(
                    self._database.listener().listen([self._channel])
                ) as notifications:
                    async for payload in notifications:
                        if payload is not None:
                            self._notified.update(payload.split(","))
                        elif not self._is_listening:
                            # The connection has just begun to listen. Register the waits that exist already.
                            self._is_listening = True
                            self._waiting.register_again()
                        else:  # a regular check of the connection has passed
                            continue
                        self.wake()
            except DatabaseUnavailable as error:
                emit("waiting.lost", error=error)
            self._is_listening = False
            await asyncio.sleep(POLL_SECONDS)
