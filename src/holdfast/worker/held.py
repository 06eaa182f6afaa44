"""The jobs that a worker holds: claims under way, jobs in the buffer, and running jobs.

The loop's thread changes it, and the keeper's thread reads copies of it. There is one exception: while a
handler blocks the loop, the keeper takes away the jobs that have not started, so that other workers can run
them.

Each job is then taken either by a slot or by the keeper. A single `popleft` is atomic, so slots need no lock
for it. Everything that takes several steps holds the lock and reads the buffer again.
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

from holdfast.operations.claiming import Claimed, Report
from holdfast.worker.context import Context
from holdfast.worker.context.notes import Note

StopReason = Literal["lost", "interrupted", "cancelled"]


# A msgspec struct, because each job has one: it takes 0.1 µs to make, and an ordinary class takes 0.4 µs.
class Running(msgspec.Struct, eq=False):
    """A job whose handler runs."""

    job: Claimed
    slot: "asyncio.Task[None]"
    begun: float
    # Made only for a handler that has a Context parameter.
    context: Context | None = None
    recorded: bool = False
    written: Note | None = None
    stop_reason: StopReason | None = None
    in_thread: bool = False

    @property
    def completed_by_handler(self) -> bool:
        """Return whether the handler's own transaction has completed the job."""
        return self.context is not None and self.context.completed

    def cancel(self) -> None:
        """Cancel the job: interrupt an async handler, or set `ctx.cancelled` for a thread."""
        if not self.in_thread:
            self.stop("cancelled")
        elif self.context is not None:
            self.context.mark_cancelled()

    def stop(self, stop_reason: StopReason) -> None:
        """Stop the handler: interrupt an async one, and set `ctx.cancelled` for a thread."""
        if self.stop_reason is None:
            self.stop_reason = stop_reason
            if self.context is not None:
                self.context.mark_cancelled()
            self.slot.cancel()


class HeldJobs:
    def __init__(self) -> None:
        self.in_flight: set[str] = set()
        self.buffer: deque[Claimed] = deque()
        # Not by id: after a lost lease the same job may run here twice for a while, under two leases.
        self.running: set[Running] = set()
        self.jobs: dict[str, Claimed] = {}
        self.changed = asyncio.Event()
        # Nothing is started on a lease that may have expired. Each heartbeat moves this on.
        self.lease_valid_until = math.inf
        # The time of the last failed claim. It may have succeeded all the same, or may still succeed.
        self.claim_doubted_at = -math.inf
        self._idle: deque[asyncio.Future[None]] = deque()
        self.closed = False
        self._lock = threading.Lock()

    @property
    def unwritten(self) -> int:
        """Return how many jobs have ended and are not yet reported."""
        return len(self.jobs) - len(self.buffer) - len(self.running)

    def take(self, lease: str, jobs: list[Claimed]) -> list[Claimed]:
        """Add the jobs of a claim and return them; none if everything was dropped while it was under way."""
        with self._lock:
            if lease not in self.in_flight:
                return []
            self.jobs.update({job.id: job for job in jobs})
            # Not earlier, because the keeper would treat these jobs as unknown.
            self.in_flight.discard(lease)
            self._sort_in(jobs)
        self.wake_slots()
        return jobs

    def take_unstarted(self) -> tuple[list[Claimed], list[str]]:
        """Take away the jobs that have not started, and the leases of claims under way.

        The keeper's thread calls it. The jobs of such a claim are dropped when its reply is read.
        """
        with self._lock:
            jobs = list[Claimed]()
            while True:
                try:
                    jobs.append(self.buffer.pop())
                except IndexError:  # a slot took the last one
                    break
            leases = list(self.in_flight)
            self.in_flight.clear()
        jobs.reverse()
        return jobs, leases

    def _sort_in(self, jobs: list[Claimed]) -> None:
        """Put jobs behind those in the buffer, but before the less urgent ones among them."""
        buffer = self.buffer
        if not jobs:
            return
        overtakes = bool(buffer) and jobs[0].priority > buffer[-1].priority
        buffer.extend(jobs)
        if overtakes or jobs[-1].suspect:
            # In place, because the slots hold this buffer. It consists of two sorted pieces, so the sort is a
            # merge.
            lined_up = sorted(buffer, key=_start_order)
            buffer.clear()
            buffer.extend(lined_up)

    async def next(self) -> Claimed | None:
        """Wait for the next job to run and return it; None when the slot should end."""
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
        """Return the jobs that start next."""
        with self._lock:
            return list(islice(self.buffer, amount))

    def last(self) -> Claimed | None:
        """Return the job that starts after all others."""
        with self._lock:
            return self.buffer[-1] if self.buffer else None

    def take_surplus(self, amount: int) -> list[Claimed]:
        """Take the last jobs out of the buffer, so that `amount` are left."""
        with self._lock:
            return [self.buffer.pop() for _ in range(len(self.buffer) - amount)]

    def wake_slots(self) -> None:
        """Wake as many idle slots as there are jobs for them."""
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
        """Remove the jobs of these reports and return them; None for a job that was not held."""
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
        """Drop every job, because other workers may have them now."""
        self.buffer.clear()
        self.in_flight.clear()
        self.jobs.clear()
        self.changed.set()
        for running in list(self.running):
            running.stop("lost")

    def close(self) -> list[Claimed]:
        """Start no more jobs, and return those that were not started."""
        self.closed = True
        with self._lock:
            unstarted = list(self.buffer)
            self.buffer.clear()
        self.wake_slots()
        return unstarted


def _start_order(job: Claimed) -> tuple[bool, int]:
    # The start of a suspect is already recorded, so it goes first.
    return not job.suspect, -job.priority
