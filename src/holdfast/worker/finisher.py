"""Many outcomes, one call: reports are written as soon as the previous write has returned.

So batches form by themselves under load, and a lone job is written at once. A report leaves only when the
database has answered: after a lost reply it is sent again, and a report that is only repeated counts as
accepted there.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast import calls
from holdfast.calls import Refusal, Report
from holdfast.database import Session
from holdfast.errors import BadInput, Collision, NotReady, UnexpectedError
from holdfast.events import emit
from holdfast.worker.failure import ERROR_LENGTH, clean
from holdfast.worker.notes import portions

BATCH = 2000
BATCH_CHARACTERS = 16 * 1024 * 1024
LONGEST_PAUSE = 2.0


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
        await self._write_before(reports)
        try:
            refused = await self._session.run(calls.finish(reports))
        except BadInput as error:
            if len(reports) > 1:
                return await self._write_apart(reports)
            # A value that the database cannot store: without it, the report is that of a failure.
            emit("report.broken", job=reports[0].id, outcome=reports[0].outcome, error=error)
            reports = [_without_values(reports[0], error)]
            refused = await self._session.run(calls.finish(reports))
        for refusal in refused:
            emit("report.refused", job=refusal.id, sqlstate=refusal.sqlstate, message=refusal.message)
        self._settled(Settled(reports, refused, time.monotonic() - begun))
        return None

    async def _write_before(self, reports: Sequence[Report]) -> None:
        """What handlers said last: each once, and nothing of a job that is no longer held."""
        spoken = [report for report in reports if report.events or report.note is not None]
        begun = [report for report in spoken if report.seconds is not None]
        events = [event for report in spoken for event in report.events]
        notes = [report.note for report in reports if report.note is not None]
        try:
            if begun:  # or they would have started only now
                ids, leases = [report.id for report in begun], [report.lease for report in begun]
                seconds = [report.seconds or 0.0 for report in begun]
                await self._session.run(calls.start(ids, leases, seconds))
            for some in portions(events):
                await self._session.run(calls.publish_many(some))
            if notes:
                await self._session.run(calls.progress_many(notes))
        except BadInput as error:
            if len(reports) > 1:
                raise  # and each is written apart
            # It says less than it could, but the job counts.
            emit("notes.broken", error=error, job=reports[0].id, events=len(events), notes=len(notes))


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
