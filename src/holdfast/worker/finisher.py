"""Many outcomes, one call: reports are written as soon as the previous write has returned.

So batches form by themselves under load, and a lone job is written at once. A report leaves only when the
database has answered: after a lost reply it is sent again, and a report that is only repeated counts as
accepted there.

A report on a job that another transaction has locked, such as an open `cancel`, is set aside and sent again
later. The others never wait for it.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast import calls
from holdfast.calls import LOCKED, Refusal, Report
from holdfast.database import Session
from holdfast.errors import BadInput, Collision, NotReady, UnexpectedError
from holdfast.events import Bunch, emit
from holdfast.worker.failure import ERROR_LENGTH, clean
from holdfast.worker.notes import portions

BATCH = 2000
BATCH_CHARACTERS = 16 * 1024 * 1024
LONGEST_PAUSE = 2.0
# After how long a report on a locked job is sent again: each time twice as long, up to the latter.
FIRST_LOCKED_PAUSE = 0.05
LAST_LOCKED_PAUSE = 1.0


class Settled(NamedTuple):
    """Reports that the database has answered, which of them it refused, and how long that took."""

    reports: Sequence[Report]
    refused: Sequence[Refusal]
    seconds: float


class Finisher:
    def __init__(self, session: Session, settled: Callable[[Settled], None]) -> None:
        """`settled` is told what the database has answered."""
        self._session = session
        self._settled = settled
        self._waiting: list[Report] = []
        # Those that could not be written: how many, and which of them are to be tried again now, each alone.
        self._aside = 0
        self._alone: list[Report] = []
        # The last pause of each report on a job that was locked, by id and lease.
        self._pauses: dict[tuple[str, str], float] = {}
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, report: Report) -> None:
        if not self._waiting:
            self._idle.clear()
            self._work.set()
        self._waiting.append(report)

    async def idle(self) -> None:
        """Wait until everything handed in has been written."""
        await self._idle.wait()

    async def run(self) -> None:
        while True:
            await self._work.wait()
            amount = _batch(self._waiting)
            batch, self._waiting = self._waiting[:amount], self._waiting[amount:]
            if batch:
                await self._write_for_sure(batch)
            if self._alone:
                self._aside -= 1
                await self._write_for_sure([self._alone.pop(0)])
            if not self._waiting and not self._alone:
                self._work.clear()
                if not self._aside:
                    self._idle.set()

    async def _write_for_sure(self, reports: Sequence[Report]) -> None:
        """Never give up: the database may be away, full or locked, and all of that passes."""
        pause = 0.05
        while True:
            try:
                return await self._write(reports)
            except Exception as error:  # noqa: BLE001 - whatever it is, no report may be lost
                if isinstance(error, UnexpectedError) or not isinstance(error, NotReady):
                    emit("finisher.broken", error=error, reports=len(reports))
                    return await self._write_apart(reports)
                emit("finisher.failed", error=error, reports=len(reports))
                if isinstance(error, Collision):  # somebody has locked one of them
                    return await self._write_apart(reports)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _write_apart(self, reports: Sequence[Report]) -> None:
        """Split, until what cannot be written stands alone: tried again later, it holds up no other."""
        if len(reports) == 1:
            self._aside += 1
            asyncio.get_running_loop().call_later(LONGEST_PAUSE, self._try_again, reports[0])
            return
        half = len(reports) // 2
        await self._write_for_sure(reports[:half])
        await self._write_for_sure(reports[half:])

    def _try_again(self, report: Report) -> None:
        self._alone.append(report)
        self._idle.clear()
        self._work.set()

    async def _write(self, reports: Sequence[Report]) -> None:
        begun = time.monotonic()
        locked = await self._write_before(reports)
        ready = [report for report in reports if report.id not in locked] if locked else reports
        refused = list[Refusal]()
        if ready:
            try:
                refused = await self._session.run(calls.finish(ready))
            except BadInput as error:
                if len(reports) > 1:
                    return await self._write_apart(reports)
                # A value that the database cannot store: without it, the report is that of a failure.
                emit("report.broken", job=reports[0].id, outcome=reports[0].outcome, error=error)
                reports = ready = [_without_values(reports[0], error)]
                refused = await self._session.run(calls.finish(ready))
        locked |= {refusal.id for refusal in refused if refusal.sqlstate == LOCKED}
        if locked:
            self._set_aside([report for report in reports if report.id in locked])
            ready = [report for report in ready if report.id not in locked]
            refused = [refusal for refusal in refused if refusal.id not in locked]
        for refusal in refused:
            emit("report.refused", job=refusal.id, sqlstate=refusal.sqlstate, message=refusal.message)
        if self._pauses:
            for report in ready:
                self._pauses.pop((report.id, report.lease), None)
        if ready:
            self._settled(Settled(ready, refused, time.monotonic() - begun))
        return None

    def _set_aside(self, locked: Sequence[Report]) -> None:
        """Send these again after a pause that grows: another transaction has locked their jobs."""
        loop, new = asyncio.get_running_loop(), list[str]()
        for report in locked:
            key = (report.id, report.lease)
            if key not in self._pauses:
                new.append(report.id)
            pause = min(2 * self._pauses.get(key, FIRST_LOCKED_PAUSE / 2), LAST_LOCKED_PAUSE)
            self._pauses[key] = pause
            self._aside += 1
            loop.call_later(pause, self._send_again, report)
        if new:
            emit("reports.locked", jobs=Bunch(new))

    def _send_again(self, report: Report) -> None:
        self._aside -= 1
        self.add(report)

    async def _write_before(self, reports: Sequence[Report]) -> set[str]:
        """What handlers said last: each once, and nothing of a job that is no longer held.

        Returns the jobs that another transaction has locked.
        """
        spoken = [report for report in reports if report.events or report.note is not None]
        begun = [report for report in spoken if report.seconds is not None]
        events = [event for report in spoken for event in report.events]
        notes = [report.note for report in reports if report.note is not None]
        locked = set[str]()
        try:
            if begun:  # or they would have started only now
                ids, leases = [report.id for report in begun], [report.lease for report in begun]
                seconds = [report.seconds or 0.0 for report in begun]
                locked |= (await self._session.run(calls.start(ids, leases, seconds))).locked
            for some in portions(events):
                locked |= (await self._session.run(calls.publish_many(some, skip_locked=True))).locked
            if notes:
                locked |= (await self._session.run(calls.progress_many(notes))).locked
        except BadInput as error:
            if len(reports) > 1:
                raise  # and each is written apart
            # It says less than it could, but the job counts.
            emit("notes.broken", error=error, job=reports[0].id, events=len(events), notes=len(notes))
        return locked


def _without_values(report: Report, error: BadInput) -> Report:
    text = f"BadResult: the outcome cannot be stored: {error}"
    return Report(report.id, report.lease, "failed", error=clean(text, ERROR_LENGTH))


def _batch(reports: Sequence[Report]) -> int:
    """How many of the first reports go well together into one call."""
    characters = 0
    for amount, report in enumerate(reports[:BATCH]):
        if report.result is not None or report.traceback is not None:
            characters += len(report.result or "") + len(report.traceback or "")
            if characters > BATCH_CHARACTERS:
                return max(amount, 1)
    return min(len(reports), BATCH)
