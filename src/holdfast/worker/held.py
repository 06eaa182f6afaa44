"""The jobs that a worker holds: claims under way, jobs in the buffer, running jobs, and unwritten reports.

The parts of a worker know the held jobs, and not each other. Each part waits for a signal here, and sets the
signals of others by what it does to the jobs:

    claimer ── take ──► buffer ──► slots ── end ──► reports ──► finisher ── settle ──► (gone)
       ▲ claim_now        ▲ futures of idle slots      ▲ report_now           │
       └── a slot came free, a notification, a suspect settled                 └► changed, retry_soon

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Literal

import msgspec

from holdfast.operations.claiming import Claimed, Refusal, Report
from holdfast.telemetry import Counted, emit
from holdfast.values.errors import WorkerLost
from holdfast.worker.context import Context
from holdfast.worker.context.notes import Note
from holdfast.worker.pace import Pace

# While a transaction holds an old snapshot, each claim scans all jobs claimed since the heads last moved.
ADVANCE_JOBS = 4000

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
        # The registration under which these jobs are held.
        self.worker = ""
        self.in_flight: set[str] = set()
        self.buffer: deque[Claimed] = deque()
        # Not by id: after a lost lease the same job may run here twice for a while, under two leases.
        self.running: set[Running] = set()
        self.jobs: dict[str, Claimed] = {}
        # Reports that the finisher has not taken yet.
        self.reports: list[Report] = []
        # Nothing is started on a lease that may have expired. Each heartbeat moves this on.
        self.lease_valid_until = math.inf
        # The time of the last failed claim. It may have succeeded all the same, or may still succeed.
        self.claim_doubted_at = -math.inf
        # Until then more urgent jobs are expected, because some have just come.
        self.urgent_until = -math.inf
        self.pace = Pace()
        # A slot that comes free wakes the claimer only if the buffer holds no more jobs than this.
        self.low = 0
        # Jobs claimed since the heads were last moved.
        self.claimed = 0
        self.closed = False
        # Whether there may be work that the last claim did not see.
        self.hinted = False
        # For a drain: whether any job was reported since the last check, and whether any of them runs again.
        self.reported = self.retry_reported = False
        # Signals.
        self.claim_now = asyncio.Event()
        self.arrived = asyncio.Event()
        self.report_now = asyncio.Event()
        self.retry_soon = asyncio.Event()
        self.advance_now = asyncio.Event()
        self.changed = asyncio.Event()
        # The last claim found nothing, and nothing has come since.
        self.idle = asyncio.Event()
        # Every report has its answer from the database.
        self.all_written = asyncio.Event()
        self.all_written.set()
        # The worker was declared lost, and all its jobs with it.
        self.lost = asyncio.Event()
        self._idle_slots: deque[asyncio.Future[None]] = deque()
        self._lock = threading.Lock()

    # Signals.

    def hint(self) -> None:
        """Note that there may be work: a notification came, or a job fell due."""
        self.hinted = True
        self.claim_now.set()

    def freed(self) -> None:
        """Note that a slot has come free."""
        self.pace.jobs += 1
        if len(self.buffer) <= self.low:
            self.claim_now.set()

    def report(self, report: Report) -> None:
        """Hand a report to the finisher."""
        if not self.reports:
            self.all_written.clear()
            self.report_now.set()
        self.reports.append(report)

    @property
    def unwritten(self) -> int:
        """Return how many jobs have ended and are not yet reported."""
        return len(self.jobs) - len(self.buffer) - len(self.running)

    @contextlib.contextmanager
    def claiming(self, lease: str) -> Iterator[None]:
        """Note that a claim is under way."""
        self.in_flight.add(lease)
        try:
            yield
        except BaseException:
            # It may have succeeded. The keeper gives back jobs held under a lease that is unknown here.
            self.claim_doubted_at = time.monotonic()
            self.hinted = True  # so that the next step claims again
            raise
        finally:
            self.in_flight.discard(lease)
            self.changed.set()  # a drain may be waiting for this claim to return nothing

    def take(self, lease: str, jobs: list[Claimed]) -> list[Claimed]:
        """Add the jobs of a claim and return them; none if everything was dropped while it was under way."""
        with self._lock:
            if lease not in self.in_flight:
                return []
            self.jobs.update({job.id: job for job in jobs})
            # Not earlier, because the keeper would treat these jobs as unknown.
            self.in_flight.discard(lease)
            self._sort_in(jobs)
        self.wake_slots()  # before all others, so that the handlers run first
        if jobs:
            self.idle.clear()
            self.arrived.set()
            self.claimed += len(jobs)
            if self.claimed >= ADVANCE_JOBS:
                self.advance_now.set()
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
            self._idle_slots.append(called)
            await called

    def order(self, amount: int) -> tuple[int | None, int]:
        """Return the priority of the job that starts last, and how many of the next jobs go before it.

        `amount` jobs start next. Those that are more urgent count.
        """
        with self._lock:
            if not self.buffer:
                return None, 0
            last = self.buffer[-1].priority
            return last, sum(job.suspect or job.priority > last for job in islice(self.buffer, amount))

    def take_last(self, amount: int) -> list[Claimed]:
        """Take so many jobs out of the buffer: those that would start last."""
        with self._lock:
            return [self.buffer.pop() for _ in range(min(amount, len(self.buffer)))]

    def wake_slots(self) -> None:
        """Wake as many idle slots as there are jobs for them."""
        wanted = len(self._idle_slots) if self.closed else len(self.buffer)
        while self._idle_slots and wanted > 0:
            called = self._idle_slots.popleft()
            if not called.done():
                called.set_result(None)
                wanted -= 1

    def give_back(self, jobs: Iterable[Claimed]) -> None:
        """Release jobs that have not started, for other workers."""
        for job in jobs:
            self.report(release(job))

    def cancel(self, cancelled: Mapping[str, str]) -> None:
        """Cancel the jobs with these ids and leases, whether they run or wait in the buffer."""
        with self._lock:
            found = [job for job in self.buffer if cancelled.get(job.id) == job.lease]
            for job in found:
                self.buffer.remove(job)
        for job in found:
            self.report(Report(job.id, job.lease, "cancelled", error="cancelled before it started"))
        for running in list(self.running):
            if cancelled.get(running.job.id) == running.job.lease:
                running.cancel()

    def settle(self, reports: Sequence[Report], refused: Sequence[Refusal], seconds: float) -> None:
        """Remove the jobs of reports that the database has answered. The call took `seconds`."""
        jobs = self.remove_reported(reports)
        self.reported = True
        for job, report in zip(jobs, reports, strict=True):
            if job is not None and job.suspect:
                self.hint()  # suspects are handed out one at a time
            if report.outcome in {"failed", "snoozed"}:
                self.retry_soon.set()  # it may be due again soon
                self.retry_reported = True
        emit(
            "jobs.finished",
            worker=self.worker,
            jobs=Counted(jobs),
            reports=Counted(reports),
            refused=Counted(refused),
            seconds=seconds,
        )

    def settle_released(self, done: Sequence[Report], left: Iterable[Report], seconds: float) -> None:
        """Take over the jobs that the keeper has released while the loop was blocked."""
        if done:
            self.settle(done, (), seconds)
        for report in left:
            self.report(report)

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

    def declare_lost(self, error: WorkerLost) -> None:
        """Note that the worker was declared lost. An error about an earlier registration is too late."""
        if str(error.worker) == self.worker and not self.lost.is_set():
            emit("worker.lost", worker=self.worker, error=error)
            self.lost.set()

    def lose(self, lost: Iterable[Running]) -> None:
        """Stop handlers whose job is no longer held here."""
        for running in lost:
            # A job that has ended in the meantime was reported, not lost, and its slot runs another job.
            if running in self.running and not running.completed_by_handler:
                emit("lease.lost", job=running.job.id, task=running.job.task)
                running.stop("lost")

    def drop_all(self) -> None:
        """Drop every job, because other workers may have them now."""
        self.buffer.clear()
        self.in_flight.clear()
        self.jobs.clear()
        self.reported = self.retry_reported = True  # a drain must not take this for the end of the jobs
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


def release(job: Claimed) -> Report:
    """Return the report that gives a job back that has not started."""
    return Report(job.id, job.lease, "released")
