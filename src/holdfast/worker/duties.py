"""The duties of a worker. `do_duties` runs the frequent ones at the rate of the fleet, and says what is due.

    every 2 s           do_duties ─► recover, advance, fold_stats: one call
    when it is due      fire, promote, upkeep, sweep: each a call of its own
    after many claims   advance

Many workers call `do_duties`, and the database lets one of them run the duties. So a duty that is due is
known to one worker. If that worker dies, the next one learns of it within seconds.
"""

import asyncio
import contextlib
import math
import random
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol, TypeVar

from holdfast.database import Session
from holdfast.operations import duties
from holdfast.telemetry import emit
from holdfast.values.call import Call
from holdfast.values.errors import DatabaseUnavailable, HoldfastError, NotReady
from holdfast.worker.held import HeldJobs

T = TypeVar("T")

# How long after a notification the worker looks when the next job is due. Jobs that fall due within this time
# are promoted together, to save calls.
PROMOTE_TOGETHER_SECONDS = 0.01
# A duty that is due later than this is left to the worker that runs `do_duties` then.
HORIZON_SECONDS = 5.0
# How long to wait before `do_duties` if the database does not say.
PAUSE_SECONDS = 2.0
# The pause of a duty that waits to be started.
LONGEST_PAUSE = 3600.0
# Many due jobs are promoted in small batches with a pause after each, because others need the server.
FIRST_PROMOTED, MOST_PROMOTED = 100, 800
OVERDUE_SECONDS = 0.01
# The pause that `promote` returns when another worker promotes due jobs, or has locked them.
RETRY_LEFT_SECONDS = 0.1
# How often the heads of the lanes move while jobs are claimed.
ADVANCE_SECONDS = 0.25
# One worker of the fleet does that, until the next one has run `do_duties`.
ADVANCE_TURN_SECONDS = 2.0
# How often a failing duty is recorded in the database.
REPORT_SECONDS = 60.0
# How long a drain waits for such jobs, and for the database.
PATIENCE = 1.0


class Line(Protocol):
    """A connection that carries calls."""

    async def run(self, call: Call[T]) -> T: ...


class Duties:
    def __init__(self, line: Line, held: HeldJobs, open_session: Callable[[], Session]) -> None:
        """`open_session` returns a connection for `upkeep` and `sweep`, which may take long."""
        self._line = line
        self._held = held
        self._open_session = open_session
        self.now = {
            "fire": asyncio.Event(),
            "promote": held.retry_soon,
            "advance": held.advance_now,
            "upkeep": asyncio.Event(),
            "sweep": asyncio.Event(),
        }
        self._timers: dict[str, asyncio.TimerHandle] = {}
        # Duties that are to run because something is due, and not only to look.
        self._expected: set[str] = set()
        # Until then this worker moves the heads again and again.
        self._advance_until = -math.inf
        self._until_due: float | None = None
        self._until_tick: float | None = None
        self._promote_amount = FIRST_PROMOTED
        self._look_again = False
        self._failures: Counter[str] = Counter()
        self._reported: dict[str, float] = {}

    def look_soon(self) -> None:
        """Look when the next job and the next schedule are due. A notification said that this has changed."""
        if not self._failures["fire"]:  # otherwise it is tried again after its pause
            self._start_in("fire", PROMOTE_TOGETHER_SECONDS)
        if self.is_behind:
            self._look_again = True  # the next batch comes soon anyway; look after the last one
        elif not self._failures["promote"]:
            self._start_in("promote", PROMOTE_TOGETHER_SECONDS)

    async def do_duties(self) -> float:
        """Run the frequent duties, start those that are due, and return how long to wait."""
        pause = PAUSE_SECONDS
        for duty, wait, done in await self._run_duty(duties.do_duties()):
            if done:
                emit("jobs.recovered", jobs=done)
            if wait is None:
                continue
            seconds = max(wait.total_seconds(), 0.0)
            if duty == "do_duties":
                # Not all workers at once, and none later than the database says: the one that ran the
                # duties last may be dead.
                pause = seconds * random.uniform(0.9, 1.0)  # noqa: S311
            elif seconds <= HORIZON_SECONDS:
                if duty == "advance":
                    self._advance_until = time.monotonic() + ADVANCE_TURN_SECONDS
                self._expected.add(duty)
                self._start_in(duty, seconds)
        return pause

    def _start_in(self, duty: str, seconds: float) -> None:
        """Start a duty after so many seconds, unless it starts earlier anyway."""
        loop, timer = asyncio.get_running_loop(), self._timers.get(duty)
        if timer is not None:
            if timer.when() <= loop.time() + seconds:
                return
            timer.cancel()
        self._timers[duty] = loop.call_later(seconds, self._start, duty)

    def _start(self, duty: str) -> None:
        del self._timers[duty]
        self.now[duty].set()

    @property
    def is_behind(self) -> bool:
        """Return whether more jobs are due than were promoted. Then the next promotion comes soon."""
        return self._until_due is not None and self._until_due <= 0

    async def fire(self) -> float:
        """Fire the schedules that are due, and return when to look again."""
        self._until_tick = _seconds(await self._run_duty(duties.fire()))
        if "fire" in self._expected:
            self._held.hint()
            self.now["promote"].set()  # a schedule with jitter makes scheduled jobs
        return self._pause("fire", self._until_tick)

    async def promote(self) -> float:
        begun = time.monotonic()
        hurry = self.is_behind and begun >= self._held.urgent_until
        self._promote_amount = min(self._promote_amount * 2, MOST_PROMOTED) if hurry else FIRST_PROMOTED
        self._until_due = _seconds(await self._run_duty(duties.promote(self._promote_amount)))
        if "promote" in self._expected:
            self._held.hint()
        if self.is_behind:
            return max(OVERDUE_SECONDS, time.monotonic() - begun)
        if self._look_again:
            self._look_again = False
            return PROMOTE_TOGETHER_SECONDS
        return self._pause("promote", self._until_due)

    def _pause(self, duty: str, until_due: float | None) -> float:
        """Return how long to sleep until the next job or schedule is due, if this worker is to see to it."""
        if until_due is None or until_due > HORIZON_SECONDS:
            self._expected.discard(duty)
            return LONGEST_PAUSE
        self._expected.add(duty)
        return max(until_due, PROMOTE_TOGETHER_SECONDS)

    async def fire_all(self, stop: asyncio.Event) -> None:
        """Fire all schedules that are due by now, even those that other workers fire."""
        patient_until = time.monotonic() + PATIENCE
        while not stop.is_set():
            await self.fire()
            if self._until_tick is not None and self._until_tick <= 0:
                patient_until = time.monotonic() + PATIENCE
            elif self._until_tick != RETRY_LEFT_SECONDS or time.monotonic() >= patient_until:
                return
            else:
                await asyncio.sleep(PROMOTE_TOGETHER_SECONDS)

    async def promote_all(self, stop: asyncio.Event) -> None:
        """Promote everything that is due by now, without pauses, even jobs that other workers promote."""
        with contextlib.suppress(HoldfastError):  # jobs do not wait for an error in schedules
            await self.fire_all(stop)
        patient_until = time.monotonic() + PATIENCE
        while not stop.is_set():
            try:
                await self.promote()
            except NotReady:
                if time.monotonic() >= patient_until:
                    raise
            else:
                if self.is_behind:
                    patient_until = time.monotonic() + PATIENCE
                    continue
                # Do not wait for jobs that are due a moment later: a job that always snoozes would never end.
                if self._until_due != RETRY_LEFT_SECONDS or time.monotonic() >= patient_until:
                    self.now["promote"].set()  # the duty must not sleep on older information
                    return
            await asyncio.sleep(PROMOTE_TOGETHER_SECONDS)

    async def advance(self) -> float:
        """Move the heads, and continue while they move and this worker ran the duties last."""
        self._held.claimed = 0
        moved = await self._run_duty(duties.advance())
        return ADVANCE_SECONDS if moved and time.monotonic() < self._advance_until else LONGEST_PAUSE

    async def upkeep(self) -> float:
        await self._run_apart(duties.upkeep(rest=timedelta(seconds=45)))
        return LONGEST_PAUSE

    async def sweep(self) -> float:
        begun = time.monotonic()
        if await self._run_apart(duties.sweep(timedelta(0))):
            return 2 * (time.monotonic() - begun)  # a pause, because others need the server too
        return LONGEST_PAUSE

    async def _run_apart(self, call: Call[T]) -> T:
        """Run a duty that may take long on a connection of its own."""
        session = self._open_session()
        try:
            return await self._run_duty(call, session)
        finally:
            await session.close()

    async def _run_duty(self, call: Call[T], line: Line | None = None) -> T:
        duty = call.function.name
        try:
            answer = await (line or self._line).run(call)
        except HoldfastError as error:
            self._failures[duty] += 1
            await self._report_failure(duty, error)
            raise
        self._failures.pop(duty, None)
        return answer

    async def _report_failure(self, duty: str, error: HoldfastError) -> None:
        """Record the failure for the doctor, except the first in a row, which may be a passing lock."""
        if self._failures[duty] == 1 or isinstance(error, DatabaseUnavailable):
            return
        now = time.monotonic()
        if now >= self._reported.get(duty, -math.inf) + REPORT_SECONDS:
            self._reported[duty] = now
            with contextlib.suppress(HoldfastError):
                await self._line.run(duties.report_duty(duty, error.message))


def _seconds(wait: timedelta | None) -> float | None:
    return None if wait is None else wait.total_seconds()
