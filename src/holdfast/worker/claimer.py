"""Claims jobs in batches of the right size, and sleeps when there are none.

The prefetch adapts: it is the number of free slots plus the jobs that the worker runs in about 100 ms. So a
stream of short jobs never waits for round trips, and slow jobs are never hoarded. When slow jobs follow short
ones, a job that has waited here for a second is given back for other workers.

Jobs that wait here must not delay a more urgent job. A busy worker asks to be woken only for jobs above the
priority of those it has, and claims them at once.
"""

import asyncio
import math
import time
from collections.abc import Callable
from uuid import uuid4

from holdfast.database import Session
from holdfast.operations import claiming, workers
from holdfast.operations.claiming import Claimed
from holdfast.telemetry import Counted, emit
from holdfast.values.errors import DatabaseUnavailable
from holdfast.worker.held import HeldJobs

BATCH = 2000
# The size of the first claim.
FIRST_BATCH = 100
# While urgent jobs arrive, other jobs are claimed in small batches with a pause after each. An urgent job has
# to wait for the claim under way, and for its share of the server.
URGENT_BATCH = 50
URGENT_PAUSE = 0.01
PREFETCH_SECONDS = 0.1
MOST_PREFETCHED = 4000
MOST_UNWRITTEN = 4000
LONGEST_PAUSE = 1.0
FIRST_POLL = 0.05
LAST_POLL = 1.0
# A listening worker still claims this often, to check that its connection works.
CHECK_SECONDS = 5.0
# After this idle time a worker is not in the middle of a stream of jobs.
QUIET_SECONDS = 0.005
# A worker that was busy for this long asks to be woken only for more urgent jobs.
BUSY_SECONDS = 0.25
# Another urgent job is expected for this long after the last one.
URGENT_SECONDS = 1.0
# The window in which the worker's rate is measured. A shorter one is too inexact, except with many jobs.
RATE_WINDOW = 0.1
FIRST_RATE_WINDOW = 0.002
ENOUGH_JOBS = 10


class Claimer:
    def __init__(
        self,
        session: Session,
        held: HeldJobs,
        *,
        queues: list[str] | None,
        tasks: list[str],
        concurrency: int,
        poll_interval: float,
        listens: bool,
        give_back: Callable[[Claimed], None],
        claimed: Callable[[int], None],
    ) -> None:
        """Call `claimed` with the number of jobs after each claim."""
        self.worker = ""
        self._lease = str(uuid4())
        self.wake = asyncio.Event()
        self.idle = asyncio.Event()
        self._session = session
        self._held = held
        self._queues = queues
        self._tasks = tasks
        self._concurrency = concurrency
        self._poll_interval = min(poll_interval, CHECK_SECONDS) if listens else poll_interval
        self._listens = listens
        self._give_back = give_back
        self._report_claimed = claimed
        self._rate = Rate()
        self.pace = 0.0
        self._prefetch = self._low = 0
        self._drained = False
        self._was_idle = True
        self._claimed_at = self._began_at = self._idle_since = time.monotonic()
        self._sleep_said_at = self._urgent_at = self._single_at = -math.inf
        self._single_priority = self._common_priority = 0
        self._asleep = False
        self._above: int | None = None
        self._hinted = False
        self._late_commits = False
        self._poll = FIRST_POLL

    def freed(self) -> None:
        """Note that a slot has come free."""
        self._rate.jobs += 1
        if len(self._held.buffer) <= self._low and not self._drained:
            self.wake.set()

    def hint(self) -> None:
        """Note that there may be work: a notification came, or a job fell due."""
        self._drained = False
        self._hinted = True
        self.wake.set()

    def start_over(self, worker: str) -> None:
        """Continue under another registration."""
        self.worker = worker
        self.forget_sleep()

    def forget_sleep(self) -> None:
        """Forget what `sleep()` has registered: it is outdated, or may be lost in a crash."""
        self._asleep = False
        self._above = None

    async def step(self) -> float:
        """Claim once if there is room, and return how long to wait before the next claim."""
        self.pace = self._rate.per_second()
        self._prefetch = min(int(self.pace * PREFETCH_SECONDS), MOST_PREFETCHED)
        self._low = self._prefetch // 2
        self._give_back_surplus()
        pause = await self._poll_once()
        if pause and not self._lease:
            self._lease = str(uuid4())  # made in advance: after an idle period it takes 70 µs
        if not pause and self._held.buffer and self.expects_urgent() and not self._hinted:
            pause, self._low = URGENT_PAUSE, -1  # free slots do not cut this pause short, only hints do
            self.wake.clear()
        return min(pause, LONGEST_PAUSE) if self._held.buffer else pause

    def expects_urgent(self) -> bool:
        """Return whether urgent jobs have arrived just now, so that more are expected."""
        return time.monotonic() - self._urgent_at < URGENT_SECONDS

    async def _poll_once(self) -> float:
        if self._held.unwritten > MOST_UNWRITTEN:
            return FIRST_POLL
        hinted, self._hinted = self._hinted, False
        urgent = hinted and self.expects_urgent() and await self._fetch_urgent(self._common_priority)
        if urgent:
            await asyncio.sleep(0)  # the urgent jobs start before the others are claimed
        amount = self._room()
        if amount <= 0:
            return await self._poll_urgent(hinted, urgent)
        if self._late_commits:
            # Asked before the claim: once no such transaction is open, the claim sees all that they have
            # committed.
            self._late_commits = await self._session.run(workers.sleep(self.worker))
        was_resting = self._asleep and self._was_idle and time.monotonic() - self._idle_since > QUIET_SECONDS
        jobs = await self._claim(amount)
        self._common_priority = jobs[-1].priority if jobs else self._common_priority
        self._drained = len(jobs) < amount and not (jobs and jobs[-1].suspect)
        if jobs:
            self._note_claim()
            if (hinted and jobs[0].priority > jobs[-1].priority) or self._follows_single(jobs[-1]):
                self._urgent_at = self._claimed_at
            if was_resting and self._drained:
                await asyncio.sleep(0)  # these jobs start first
                self._single_priority, self._single_at = jobs[0].priority, self._claimed_at
                return self._pause_after_few()
            await self._wake_only_above(jobs[-1].priority)
            return 0.0
        self._was_idle = True
        if self._listens and not self._asleep:
            # Register as asleep first and claim once more. Jobs enqueued in between have sent no
            # notification.
            self._late_commits = await self._session.run(workers.sleep(self.worker))
            self._asleep, self._above = True, None
            self._poll = FIRST_POLL
            return 0.0
        return self._idle_pause()

    async def _poll_urgent(self, hinted: bool, urgent: bool) -> float:
        """Claim only more urgent jobs, because the buffer holds enough others."""
        self._drained = False  # the next slot that comes free wakes the claimer
        buffer, last = self._held.buffer, self._held.last()
        if not hinted or last is None:
            return self._poll_interval
        above = last.priority
        if urgent or await self._fetch_urgent(above):
            self._hinted = True  # there may be more of them
            return 0.0
        if buffer and self._room_above(above) <= 0:
            self._hinted, self._low = True, len(buffer)  # try again when the next slot comes free
        return self._poll_interval

    async def _fetch_urgent(self, above: int) -> bool:
        """Claim only jobs above this priority, and return whether there were any."""
        room = self._room_above(above)
        jobs = await self._claim(room, above=above) if room > 0 else []
        if jobs:
            self._urgent_at = time.monotonic()
        return bool(jobs)

    def _room_above(self, priority: int) -> int:
        """Return how many urgent jobs can start at once. Other jobs may have the rest of the buffer."""
        first = self._held.first(self._concurrency)
        urgent = sum(job.suspect or job.priority > priority for job in first)  # suspects start first
        return min(self._concurrency, self._wanted) - urgent

    def _note_claim(self) -> None:
        self._claimed_at = time.monotonic()
        if self._was_idle:
            self._began_at = self._claimed_at
            self._rate.begin()
            self._was_idle = False
        self.idle.clear()

    def _follows_single(self, job: Claimed) -> bool:
        """Return whether this job is less urgent than the single jobs that came just before."""
        return job.priority < self._single_priority and self._claimed_at - self._single_at < URGENT_SECONDS

    def _pause_after_few(self) -> float:
        """Return the pause after one or two jobs came while the worker was idle.

        The next job sends a notification. So another claim at once would only delay these jobs and their
        reports. It still comes soon, because a claim is limited in bytes too and may have left jobs behind.
        """
        self._was_idle = True
        self._idle_since = self._claimed_at
        return FIRST_POLL

    @property
    def _wanted(self) -> int:
        """Return how many waiting jobs to hold: for the free slots, and as prefetch."""
        return self._concurrency - len(self._held.running) + self._prefetch

    def _room(self) -> int:
        room = self._wanted - len(self._held.buffer)
        # Wait until a good batch fits, while the buffer holds enough jobs.
        if room <= self._low:
            return 0
        if self.expects_urgent():
            return min(room, URGENT_BATCH)
        return min(room, FIRST_BATCH if self._was_idle else BATCH)

    def _give_back_surplus(self) -> None:
        if time.monotonic() - self._claimed_at > LONGEST_PAUSE:
            for job in self._held.take_surplus(self._prefetch):
                self._give_back(job)

    async def _claim(self, amount: int, *, above: int | None = None) -> list[Claimed]:
        lease, worker, begun = self._lease or str(uuid4()), self.worker, time.monotonic()
        self._lease = ""
        claim = claiming.claim(
            worker=worker, lease=lease, queues=self._queues, tasks=self._tasks, amount=amount, above=above
        )
        self._held.in_flight.add(lease)
        try:
            try:
                jobs = await self._session.run(claim)
            except DatabaseUnavailable as error:
                # The claim may have succeeded, and only the reply was lost: ask by its lease. If it succeeds
                # later, the keeper finds its jobs.
                emit("claim.failed", error=error)
                self._held.claim_doubted_at = time.monotonic()
                await asyncio.sleep(FIRST_POLL)
                jobs = await self._session.run(claiming.claimed(worker=worker, lease=lease))
            emit("jobs.claimed", worker=worker, jobs=Counted(jobs), seconds=time.monotonic() - begun)
            self._report_claimed(len(jobs))
            return self._held.take(lease, jobs)
        except BaseException:
            # The question failed too. The keeper gives back jobs held under a lease that is unknown here.
            self._held.claim_doubted_at = time.monotonic()
            raise
        finally:
            self._held.in_flight.discard(lease)
            self._held.changed.set()  # a drain may be waiting for this claim to return nothing

    async def _wake_only_above(self, priority: int) -> None:
        """Ask to be woken only for jobs above this priority."""
        if self._asleep or (self._above is not None and priority > self._above):
            # The worker is woken for less urgent jobs too. That costs producers some time, but so would a
            # change of the priority for each job.
            long_since = self._claimed_at - max(self._began_at, self._sleep_said_at) > BUSY_SECONDS
            needed = long_since or (self._asleep and self.expects_urgent())
        else:
            needed = priority != self._above
        if needed and self._listens:
            # If the reply is lost, the registered priority is unknown, and is registered again.
            self._asleep, self._late_commits, self._above = False, False, None
            await self._session.run(workers.sleep(self.worker, above=priority))
            self._sleep_said_at, self._above = self._claimed_at, priority

    def _idle_pause(self) -> float:
        if not self._hinted:  # otherwise a job may have come since this claim began
            self.idle.set()
        self._idle_since = time.monotonic()
        if not self._late_commits:
            return self._poll_interval
        # A transaction may have inserted jobs before the worker fell asleep, and commits without a
        # notification.
        pause, self._poll = self._poll, min(self._poll * 2, LAST_POLL)
        return min(pause, self._poll_interval)


class Rate:
    """Jobs per second, over about the last half second.

    After an idle period the rate is read after a few milliseconds. A worker may run 20,000 jobs in half a
    second, and would otherwise be short of jobs for much of it.
    """

    def __init__(self) -> None:
        self.jobs = 0
        self._per_second = 0.0
        self._since = time.monotonic()
        self._window = RATE_WINDOW

    def begin(self) -> None:
        """Start again after an idle period, which must not count."""
        self.jobs, self._since, self._window = 0, time.monotonic(), FIRST_RATE_WINDOW

    def per_second(self) -> float:
        elapsed = time.monotonic() - self._since
        if elapsed >= RATE_WINDOW or (elapsed >= self._window and self.jobs >= ENOUGH_JOBS):
            # The longer the window, the less the earlier rate counts. Each of the first windows replaces the
            # rate.
            weight = min(max(elapsed, 0.5), 1.0) if self._window == RATE_WINDOW else 1.0
            self._per_second = (1 - weight) * self._per_second + weight * self.jobs / elapsed
            self.jobs, self._since, self._window = 0, time.monotonic(), min(self._window * 4, RATE_WINDOW)
        return self._per_second
