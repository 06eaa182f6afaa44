"""The duties of a worker: each is one SQL function, and only one worker of the fleet runs it at a time."""

import asyncio
import contextlib
import math
import random
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from holdfast.database import Session
from holdfast.operations import duties
from holdfast.telemetry import emit
from holdfast.values.call import Call
from holdfast.values.errors import DatabaseUnavailable, HoldfastError, NotReady

T = TypeVar("T")

# How often a worker does each duty. A test compares this table with `holdfast.list_duties()`.
SECONDS = {
    "fire": 1.0,
    "promote": 1.0,
    "recover": 1.0,
    "advance": 0.25,
    "fold_stats": 1.0,
    "upkeep": 60.0,
    "sweep": 30.0,
}
# The payload with which `holdfast.wake_schedulers` notifies.
SCHEDULES_CHANGED = b""
# While a transaction holds an old snapshot, each claim scans all jobs claimed since the heads last moved.
ADVANCE_JOBS = 4000
# Jobs that fall due within this time are promoted together, to save calls.
PROMOTE_TOGETHER_SECONDS = 0.01
# A new worker delays its duties for this long, so that its first jobs get the machine.
STARTUP_SECONDS = 0.25
# Cleaning up waits longer, until the first rush of jobs is over.
CLEANUP_DELAY = 5.0
# Many due jobs are promoted in small batches with a pause after each, because others need the server.
FIRST_PROMOTED, MOST_PROMOTED = 100, 800
OVERDUE_SECONDS = 0.01
# The pause that `promote` returns when another worker promotes due jobs, or has locked them.
RETRY_LEFT_SECONDS = 0.1
# How often a failing duty is recorded in the database.
REPORT_SECONDS = 60.0
# How long a drain waits for such jobs, and for the database.
PATIENCE = 1.0


class Duties:
    def __init__(
        self,
        session: Session,
        *,
        lease_time: float,
        due: Callable[[], None],
        expects_urgent: Callable[[], bool],
    ) -> None:
        """Call `due` when jobs may have become pending. `expects_urgent` tells whether urgent jobs arrive."""
        self._session = session
        self._due = due
        self._expects_urgent = expects_urgent
        self.recover_seconds = min(SECONDS["recover"], lease_time / 6)
        self._until_due: float | None = None
        self._until_tick: float | None = None
        self._notified = False
        self._promote_amount = FIRST_PROMOTED
        self.advance_now = asyncio.Event()
        self.promote_now = asyncio.Event()
        self.fire_now = asyncio.Event()
        self._claimed = 0
        self._more_to_sweep = False
        self._failures: Counter[str] = Counter()
        self._reported: dict[str, float] = {}

    def claimed(self, jobs: int) -> None:
        """Count claimed jobs, and advance the heads after enough of them."""
        self._claimed += jobs
        if self._claimed >= ADVANCE_JOBS:
            self.advance_now.set()

    def notified(self) -> None:
        """Promote soon, because a notification came. It may announce a job that is due before all known ones.

        Claims go first. Jobs that become pending send notifications too, so each promotion would trigger
        another one.
        """
        if self.is_behind:
            self._notified = True
        else:
            asyncio.get_running_loop().call_later(PROMOTE_TOGETHER_SECONDS, self.promote_now.set)

    @property
    def is_behind(self) -> bool:
        """Return whether more jobs are due than were promoted. Then the next promotion comes soon anyway."""
        return self._until_due is not None and self._until_due <= 0

    async def fire(self) -> float:
        """Fire the schedules that are due, and return when to look again."""
        expected = self._until_tick
        wait = await self._run_duty(duties.fire())
        self._until_tick = None if wait is None else wait.total_seconds()
        if expected is not None and expected <= SECONDS["fire"]:
            self._due()
            self.promote_now.set()  # a schedule with jitter makes scheduled jobs
        if self._until_tick is None:
            return SECONDS["fire"]
        return min(max(self._until_tick, PROMOTE_TOGETHER_SECONDS), SECONDS["fire"])

    async def promote(self) -> float:
        expected = self._until_due
        begun = time.monotonic()
        hurry = self.is_behind and not self._expects_urgent()
        self._promote_amount = min(self._promote_amount * 2, MOST_PROMOTED) if hurry else FIRST_PROMOTED
        wait = await self._run_duty(duties.promote(self._promote_amount))
        self._until_due = None if wait is None else wait.total_seconds()
        if expected is not None and expected <= SECONDS["promote"]:
            self._due()
        if self._notified and not self.is_behind:
            self._notified = False  # it may have come during the call
            return PROMOTE_TOGETHER_SECONDS
        match self._until_due:
            case None:
                return SECONDS["promote"]
            case overdue if overdue <= 0:
                return max(OVERDUE_SECONDS, time.monotonic() - begun)
            case soon:
                return min(max(soon, PROMOTE_TOGETHER_SECONDS), SECONDS["promote"])

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
                    self.promote_now.set()  # the duty must not sleep on older information
                    return
            await asyncio.sleep(PROMOTE_TOGETHER_SECONDS)

    async def recover(self) -> None:
        amount = await self._run_duty(duties.recover())
        if amount:
            emit("jobs.recovered", jobs=amount)

    async def fold_stats(self) -> None:
        await self._run_duty(duties.fold_stats())

    async def advance(self) -> None:
        self._claimed = 0
        await self._run_duty(duties.advance())

    async def upkeep(self) -> float:
        await self._run_duty(duties.upkeep(rest=timedelta(seconds=SECONDS["upkeep"] * 0.75)))
        return SECONDS["upkeep"] * random.uniform(0.8, 1.2)  # noqa: S311 - so that workers do not run in step

    async def sweep(self) -> float:
        begun = time.monotonic()
        rest = timedelta(0) if self._more_to_sweep else timedelta(seconds=SECONDS["sweep"] * 0.75)
        self._more_to_sweep = await self._run_duty(duties.sweep(rest))
        if self._more_to_sweep:
            return 2 * (time.monotonic() - begun)  # a pause, because others need the server too
        return SECONDS["sweep"] * random.uniform(0.8, 1.2)  # noqa: S311

    async def _run_duty(self, call: Call[T]) -> T:
        duty = call.function.name
        try:
            answer = await self._session.run(call)
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
                await self._session.run(duties.report_duty(duty, error.message))
