"""The duties that every worker offers to do: each is one SQL function, one at a time in the whole fleet."""

import asyncio
import contextlib
import math
import random
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from holdfast import calls
from holdfast.calls import Call
from holdfast.database import Session
from holdfast.telemetry import emit
from holdfast.values.errors import DatabaseUnavailable, HoldfastError, NotReady

T = TypeVar("T")

ADVANCE_SECONDS = 0.25
# While somebody holds an old snapshot, each claim walks over all that was claimed since the heads last moved.
ADVANCE_JOBS = 4000
PROMOTE_SECONDS = 1.0
RECOVER_SECONDS = 1.0
UPKEEP_SECONDS = 60.0
SWEEP_SECONDS = 30.0
# A look costs something, so what falls due within a moment is promoted together.
PROMOTE_TOGETHER_SECONDS = 0.01
# By then, who has just started is at work: until then, its first jobs have the machine.
STARTUP_SECONDS = 0.25
# What there is to clean up waits until its first rush is over.
CLEANUP_DELAY = 5.0
# A flood of due jobs is let in bit by bit, with a rest after each: others want the server too.
FIRST_PROMOTED, MOST_PROMOTED = 100, 800
OVERDUE_SECONDS = 0.01
# What `promote` answers where due jobs were left: somebody promotes them, or has locked them.
RETRY_LEFT_SECONDS = 0.1
# How often it is noted in the database that a duty fails.
REPORT_SECONDS = 60.0
# How long a drain waits for those, and for the database.
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
        self.recover_seconds = min(RECOVER_SECONDS, lease_time / 6)
        self._until_due: float | None = None
        self._notified = False
        self._promote_amount = FIRST_PROMOTED
        self.advance_now = asyncio.Event()
        self.promote_now = asyncio.Event()
        self._claimed = 0
        self._more_to_sweep = False
        self._failures: Counter[str] = Counter()
        self._reported: dict[str, float] = {}

    def claimed(self, jobs: int) -> None:
        """So many were claimed here: time to let the heads follow?"""
        self._claimed += jobs
        if self._claimed >= ADVANCE_JOBS:
            self.advance_now.set()

    def notified(self) -> None:
        """Something has come. It may be due later, but sooner than all that we know of. Claims go first.

        What becomes pending is heard of as well, so that each promotion would bring about another one.
        """
        if self.is_behind:
            self._notified = True
        else:
            asyncio.get_running_loop().call_later(PROMOTE_TOGETHER_SECONDS, self.promote_now.set)

    @property
    def is_behind(self) -> bool:
        """Whether more was due than has become pending: then the next promotion is not far anyway."""
        return self._until_due is not None and self._until_due <= 0

    async def promote(self) -> float:
        expected = self._until_due
        begun = time.monotonic()
        hurry = self.is_behind and not self._expects_urgent()
        self._promote_amount = min(self._promote_amount * 2, MOST_PROMOTED) if hurry else FIRST_PROMOTED
        wait = await self._run_duty(calls.promote(self._promote_amount))
        self._until_due = None if wait is None else wait.total_seconds()
        if expected is not None and expected <= PROMOTE_SECONDS:
            self._due()
        if self._notified and not self.is_behind:
            self._notified = False  # it may have come while this was under way
            return PROMOTE_TOGETHER_SECONDS
        match self._until_due:
            case None:
                return PROMOTE_SECONDS
            case overdue if overdue <= 0:
                return max(OVERDUE_SECONDS, time.monotonic() - begun)
            case soon:
                return min(max(soon, PROMOTE_TOGETHER_SECONDS), PROMOTE_SECONDS)

    async def promote_all(self, stop: asyncio.Event) -> None:
        """Whatever is due by now, without a rest in between; also what others are about to promote."""
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
                # What falls due sooner is not waited for: a job that puts itself off each time has no end.
                if self._until_due != RETRY_LEFT_SECONDS or time.monotonic() >= patient_until:
                    self.promote_now.set()  # the duty has slept on what was known before
                    return
            await asyncio.sleep(PROMOTE_TOGETHER_SECONDS)

    async def recover(self) -> None:
        amount = await self._run_duty(calls.recover())
        if amount:
            emit("jobs.recovered", jobs=amount)

    async def advance(self) -> None:
        self._claimed = 0
        await self._run_duty(calls.advance())

    async def upkeep(self) -> float:
        await self._run_duty(calls.upkeep(rest=timedelta(seconds=UPKEEP_SECONDS * 0.75)))
        return UPKEEP_SECONDS * random.uniform(0.8, 1.2)  # noqa: S311 - so that workers do not ask in step

    async def sweep(self) -> float:
        begun = time.monotonic()
        rest = timedelta(0) if self._more_to_sweep else timedelta(seconds=SWEEP_SECONDS * 0.75)
        self._more_to_sweep = await self._run_duty(calls.retention.sweep(rest))
        if self._more_to_sweep:
            return 2 * (time.monotonic() - begun)  # a rest after each: others want the server too
        return SWEEP_SECONDS * random.uniform(0.8, 1.2)  # noqa: S311

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
        """Let the doctor know, unless it is the first failure in a row: that may be a lock in the way."""
        if self._failures[duty] == 1 or isinstance(error, DatabaseUnavailable):
            return
        now = time.monotonic()
        if now >= self._reported.get(duty, -math.inf) + REPORT_SECONDS:
            self._reported[duty] = now
            with contextlib.suppress(HoldfastError):
                await self._session.run(calls.report_duty(duty, error.message))
