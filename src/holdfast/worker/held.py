"""What a worker has in hand: claims on their way, jobs in the buffer, jobs that run.

The loop's thread changes it, and the keeper's thread only reads copies of it. The exception: while a handler
blocks the loop, the keeper takes away what has not started, for others to run.

Each job is then either a slot's or the keeper's. A single `popleft` is atomic, so slots need no lock for it.
Everything that takes several steps holds the lock, and nothing relies on an earlier look at the buffer.
"""

import asyncio
import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Literal

import msgspec

from holdfast.calls import Claimed, Report
from holdfast.worker.context import Context
from holdfast.worker.context.notes import Note

StopReason = Literal["lost", "interrupted", "cancelled"]


# A msgspec struct, for there is one for each job: made in 0.1 µs, a class of ours takes 0.4.
class Running(msgspec.Struct, eq=False):
    """A job whose handler is at work."""

    job: Claimed
    slot: "asyncio.Task[None]"
    begun: float
    # Made only for a handler that asks for it.
    context: Context | None = None
    recorded: bool = False
    written: Note | None = None
    stop_reason: StopReason | None = None
    in_thread: bool = False

    @property
    def completed_by_handler(self) -> bool:
        """Whether the handler has completed its job itself: nobody holds it any more, and that is well."""
        return self.context is not None and self.context.completed

    def cancel(self) -> None:
        """Somebody cancelled the job: an async handler is cut off, a thread can only be told."""
        if not self.in_thread:
            self.stop("cancelled")
        elif self.context is not None:
            self.context.mark_cancelled()

    def stop(self, stop_reason: StopReason) -> None:
        """Cut the handler off: an async one is cancelled, a thread sees `ctx.cancelled`."""
        if self.stop_reason is None:
            self.stop_reason = stop_reason
            if self.context is not None:
                self.context.mark_cancelled()
            self.slot.cancel()


class HeldJobs:
    def __init__(self) -> None:
        self.in_flight: set[str] = set()
        self.buffer: deque[Claimed] = deque()
        # Not by id: after a lost lease the same job may run here twice for a while, under another one.
        self.running: set[Running] = set()
        self.jobs: dict[str, Claimed] = {}
        self.changed = asyncio.Event()
        # Nothing is started on a lease that may have run out; the keeper moves this on.
        self.lease_valid_until = math.inf
        # When a claim last failed: it may have happened all the same, or may yet.
        self.claim_doubted_at = -math.inf
        self._idle: deque[asyncio.Future[None]] = deque()
        self.closed = False
        self._lock = threading.Lock()

    @property
    def unwritten(self) -> int:
        """How many jobs are done but not yet reported."""
        return len(self.jobs) - len(self.buffer) - len(self.running)

    def take(self, lease: str, jobs: list[Claimed]) -> list[Claimed]:
        """Have the jobs of a claim; none of them if everything was given up while it was under way."""
        with self._lock:
            if lease not in self.in_flight:
                return []
            self.jobs.update({job.id: job for job in jobs})
            # Only now: in between, the keeper would take them for unknown.
            self.in_flight.discard(lease)
            self._sort_in(jobs)
        self.wake_slots()
        return jobs

    def take_unstarted(self) -> tuple[list[Claimed], list[str]]:
        """Take away the jobs that have not started, and the leases of claims under way.

        The keeper's thread calls it. What such a claim has brought is dropped when its reply is read.
        """
        with self._lock:
            jobs = list[Claimed]()
            while True:
                try:
                    jobs.append(self.buffer.pop())
                except IndexError:  # a slot may have been quicker
                    break
            leases = list(self.in_flight)
            self.in_flight.clear()
        jobs.reverse()
        return jobs, leases

    def _sort_in(self, jobs: list[Claimed]) -> None:
        """Behind those that wait already, but before the less urgent ones among them."""
        buffer = self.buffer
        if not jobs:
            return
        overtakes = bool(buffer) and jobs[0].priority > buffer[-1].priority
        buffer.extend(jobs)
        if overtakes or jobs[-1].suspect:
            # In place, for the slots know this very buffer. It is two sorted pieces: a merge, in truth.
            lined_up = sorted(buffer, key=_start_order)
            buffer.clear()
            buffer.extend(lined_up)

    async def next(self) -> Claimed | None:
        """The next job to run, as soon as there is one; none when it is time to end."""
        while True:
            if time.monotonic() <= self.lease_valid_until:
                with contextlib.suppress(IndexError):
                    return self.buffer.popleft()
            if self.closed:
                return None
            called = asyncio.get_running_loop().create_future()
            self._idle.append(called)
            await called

    def first(self, amount: int) -> list[Claimed]:
        """Those that start next."""
        with self._lock:
            return list(islice(self.buffer, amount))

    def last(self) -> Claimed | None:
        """The one that starts after all others."""
        with self._lock:
            return self.buffer[-1] if self.buffer else None

    def take_surplus(self, amount: int) -> list[Claimed]:
        """Take the last ones out of the buffer, so that `amount` are left."""
        with self._lock:
            return [self.buffer.pop() for _ in range(len(self.buffer) - amount)]

    def wake_slots(self) -> None:
        """Call as many idle slots as there are jobs for them."""
        wanted = len(self._idle) if self.closed else len(self.buffer)
        while self._idle and wanted > 0:
            called = self._idle.popleft()
            if not called.done():
                called.set_result(None)
                wanted -= 1

    def take_cancelled(self, cancelled: Mapping[str, str]) -> list[Claimed]:
        """Take the jobs with these ids and leases out of the buffer."""
        with self._lock:
            found = [job for job in self.buffer if cancelled.get(job.id) == job.lease]
            for job in found:
                self.buffer.remove(job)
        return found

    def remove_reported(self, reports: Iterable[Report]) -> list[Claimed | None]:
        """The database has answered for these jobs: they are no longer ours. None for what was not."""
        held, jobs = self.jobs, list[Claimed | None]()
        for report in reports:
            job = held.get(report.id)
            if job is not None and job.lease == report.lease:
                del held[report.id]
                jobs.append(job)
            else:
                jobs.append(None)
        if not held:
            self.changed.set()
        return jobs

    def is_empty(self) -> bool:
        return not self.jobs and not self.in_flight

    def drop_all(self) -> None:
        """Everything we held belongs to others now."""
        self.buffer.clear()
        self.in_flight.clear()
        self.jobs.clear()
        self.changed.set()
        for running in list(self.running):
            running.stop("lost")

    def close(self) -> list[Claimed]:
        """Start nothing more; the jobs that were not started."""
        self.closed = True
        with self._lock:
            unstarted = list(self.buffer)
            self.buffer.clear()
        self.wake_slots()
        return unstarted


def _start_order(job: Claimed) -> tuple[bool, int]:
    # A suspect's clock is running already, so it goes first.
    return not job.suspect, -job.priority
