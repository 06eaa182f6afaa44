"""Writes reports in batches, each as soon as the previous one is written.

Under load, reports collect while a batch is written; a lone report is written at once. A report leaves the
finisher only when the database has answered. After a lost reply it is sent again, and the database accepts
the repetition.

Two kinds of reports are set aside and sent again later, so that the others never wait for them:

- reports on jobs that another transaction has locked, such as an open `cancel`. They join a batch again.
- reports that fail on their own, for any other reason. Each is sent alone again.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast.database import Session
from holdfast.operations import attempts, claiming
from holdfast.operations.claiming import LOCKED, Refusal, Report
from holdfast.telemetry import Counted, emit
from holdfast.values.errors import BadInput, Collision, NotReady
from holdfast.worker.context.notes import chunks
from holdfast.worker.failure import ERROR_LENGTH, storable

BATCH = 2000
BATCH_CHARACTERS = 16 * 1024 * 1024
LONGEST_PAUSE = 2.0
# The pause before a report on a locked job is sent again. It doubles each time, up to LAST_LOCKED_PAUSE.
FIRST_LOCKED_PAUSE = 0.05
LAST_LOCKED_PAUSE = 1.0


class Settled(NamedTuple):
    """Reports that the database has answered, the refusals among them, and the length of the call."""

    reports: Sequence[Report]
    refused: Sequence[Refusal]
    seconds: float


class Finisher:
    def __init__(self, session: Session, settled: Callable[[Settled], None]) -> None:
        """Call `settled` with each answer of the database."""
        self._session = session
        self._settled = settled
        self._waiting: list[Report] = []
        # How many reports are set aside. Those in `_alone` count too, until run() sends them.
        self._aside = 0
        # Reports whose timer has ended and that are sent one by one.
        self._alone: list[Report] = []
        # The last pause of each report on a locked job, by id and lease.
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
        """Wait until every report that was added has been written."""
        await self._idle.wait()

    async def run(self) -> None:
        while True:
            await self._work.wait()
            size = _batch_size(self._waiting)
            batch, self._waiting = self._waiting[:size], self._waiting[size:]
            if batch:
                await self._write_until_done(batch)
            if self._alone:
                self._aside -= 1
                await self._write_until_done([self._alone.pop(0)])
            if not self._waiting and not self._alone:
                self._work.clear()
                if not self._aside:
                    self._idle.set()

    async def _write_until_done(self, reports: Sequence[Report]) -> None:
        """Write these reports, and retry until that works or they are set aside.

        It never gives up on a report: outages, full disks and locks end.
        """
        pause = 0.05
        while True:
            try:
                return await self._write(reports)
            except Exception as error:  # noqa: BLE001 - no error may lose a report
                if not isinstance(error, NotReady):  # one of the reports may be the cause
                    emit("finisher.broken", error=error, reports=len(reports))
                    return await self._split(reports)
                emit("finisher.failed", error=error, reports=len(reports))
                if isinstance(error, Collision):  # another transaction has locked one of the jobs
                    return await self._split(reports)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _split(self, reports: Sequence[Report]) -> None:
        """Write each half by itself. Set a single report aside, so that no other waits for it."""
        if len(reports) == 1:
            self._aside += 1
            asyncio.get_running_loop().call_later(LONGEST_PAUSE, self._try_again, reports[0])
            return
        half = len(reports) // 2
        await self._write_until_done(reports[:half])
        await self._write_until_done(reports[half:])

    def _try_again(self, report: Report) -> None:
        self._alone.append(report)
        self._idle.clear()
        self._work.set()

    async def _write(self, reports: Sequence[Report]) -> None:
        begun = time.monotonic()
        locked = await self._write_notes(reports)
        ready = [report for report in reports if report.id not in locked] if locked else reports
        refused = list[Refusal]()
        if ready:
            try:
                refused = await self._session.run(claiming.finish(ready))
            except BadInput as error:
                if len(reports) > 1:
                    return await self._split(reports)
                # The database cannot store a value of this report. Without it, report a failure.
                emit("report.broken", job=reports[0].id, outcome=reports[0].outcome, error=error)
                reports = ready = [_without_values(reports[0], error)]
                refused = await self._session.run(claiming.finish(ready))
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
        """Send these reports again after a growing pause, because another transaction has locked their jobs.

        Log a job only if it is still locked after the first pause. The worker's own keeper briefly holds such
        locks too.
        """
        loop, new = asyncio.get_running_loop(), list[str]()
        for report in locked:
            key = (report.id, report.lease)
            if self._pauses.get(key) == FIRST_LOCKED_PAUSE:
                new.append(report.id)
            pause = min(2 * self._pauses.get(key, FIRST_LOCKED_PAUSE / 2), LAST_LOCKED_PAUSE)
            self._pauses[key] = pause
            self._aside += 1
            loop.call_later(pause, self._send_again, report)
        if new:
            emit("reports.locked", jobs=Counted(new))

    def _send_again(self, report: Report) -> None:
        self._aside -= 1
        self.add(report)

    async def _write_notes(self, reports: Sequence[Report]) -> set[str]:
        """Write the last events and progress of these jobs, before their reports end them.

        Each is written once, and nothing is written about a job that is no longer held. Returns the jobs that
        another transaction has locked.
        """
        with_notes = [report for report in reports if report.events or report.note is not None]
        begun = [report for report in with_notes if report.seconds is not None]
        events = [event for report in with_notes for event in report.events]
        notes = [report.note for report in reports if report.note is not None]
        locked = set[str]()
        try:
            if begun:  # otherwise their first event or progress would count as their start
                ids, leases = [report.id for report in begun], [report.lease for report in begun]
                seconds = [report.seconds or 0.0 for report in begun]
                locked |= (await self._session.run(attempts.start(ids, leases, seconds))).locked
            for some in chunks(events):
                locked |= (await self._session.run(attempts.publish_many(some, skip_locked=True))).locked
            if notes:
                locked |= (await self._session.run(attempts.progress_many(notes))).locked
        except BadInput as error:
            if len(reports) > 1:
                raise  # the caller splits the batch
            # The notes are lost, but the report must be written.
            emit("notes.broken", error=error, job=reports[0].id, events=len(events), notes=len(notes))
        return locked


def _without_values(report: Report, error: BadInput) -> Report:
    text = f"BadResult: the outcome cannot be stored: {error}"
    return Report(report.id, report.lease, "failed", error=storable(text, ERROR_LENGTH))


def _batch_size(reports: Sequence[Report]) -> int:
    """Return how many of the first reports fit into one call."""
    characters = 0
    for count, report in enumerate(reports[:BATCH]):
        if report.result is not None or report.traceback is not None:
            characters += len(report.result or "") + len(report.traceback or "")
            if characters > BATCH_CHARACTERS:
                return max(count, 1)
    return min(len(reports), BATCH)
